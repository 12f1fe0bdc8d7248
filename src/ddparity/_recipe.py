"""A recipe: a training in four functions, where a script is more than is wanted or cannot be run as it is.

    def model(): ...                 # a torch.nn.Module
    def batch(n): ...                # n samples: tensors of shape (n, ...) in any nesting
    def loss(model, batch): ...      # a scalar tensor, the mean over the samples
    def optimizer(model): ...        # a torch.optim.Optimizer

The file is run as a module is imported; it stands alone or imports from its own folder.
"""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddparity._errors import UsageError

FUNCTIONS = ("model", "batch", "loss", "optimizer")
EXAMPLE = """    def model(): return torch.nn.Linear(8, 2)
    def batch(n): return torch.randn(n, 8), torch.randint(2, (n,))
    def loss(model, batch): return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    def optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.1)"""


@dataclass(frozen=True)
class Recipe:
    """The four functions of a recipe.

    Attributes:
        model: Makes the model.
        batch: Makes a batch of a number of samples.
        loss: Computes the loss of a model on a batch, a mean over its samples.
        optimizer: Makes the optimizer of a model.
        path: Where they stand.
    """

    model: Callable[[], Any]
    batch: Callable[[int], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[Any], Any]
    path: Path


def load_recipe(path: Path) -> Recipe:
    """Run a recipe's file and return its functions.

    Raises:
        UsageError: The file is not there, or lacks one of the functions.
    """
    if not path.is_file():
        raise UsageError(f"The recipe {str(path)!r} is not there. It is a Python file with, for example:\n{EXAMPLE}")
    spec = importlib.util.spec_from_file_location("ddparity_recipe", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    missing = [name for name in FUNCTIONS if not callable(getattr(module, name, None))]
    if missing:
        raise UsageError(f"The recipe {str(path)!r} lacks {', '.join(missing)}. All four together:\n{EXAMPLE}")
    return Recipe(*(getattr(module, name) for name in FUNCTIONS), path=path)
