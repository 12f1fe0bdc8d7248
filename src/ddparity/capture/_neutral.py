"""``record --neutral-dropout``: random modules switched off, where their masks cannot be matched.

The dropout functions of torch are called as in evaluation mode; everything else runs as in training. Masks that a
script draws by hand (``bernoulli_``, ``rand() < p``) stay random.
"""

import functools
import inspect
from typing import Any

import torch
from torch.nn import functional

_DROPOUT = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu")
_NATIVE = ("dropout", "dropout_", "feature_dropout", "feature_dropout_", "alpha_dropout", "alpha_dropout_")


def install_neutral() -> None:
    """Replace the dropout functions, before anybody imports their names."""
    for name in _DROPOUT:
        _as_in_evaluation(name)
    for name in _NATIVE:
        _untrained(name)
    _attention()
    recurrent: Any = torch.nn.RNNBase
    plain = recurrent.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        self.dropout = 0.0

    recurrent.__init__ = init


def _as_in_evaluation(name: str) -> None:
    plain = getattr(functional, name, None)
    if plain is None:  # another version of torch
        return
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.arguments["training"] = False
        return plain(*given.args, **given.kwargs)

    setattr(functional, name, call)


def _untrained(name: str) -> None:
    plain = getattr(torch, name, None)
    if plain is None:
        return

    @functools.wraps(plain)
    def call(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return plain(input, p, False)

    setattr(torch, name, call)


def _attention() -> None:
    plain = functional.scaled_dot_product_attention

    @functools.wraps(plain)
    def call(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> torch.Tensor:
        return plain(query, key, value, attn_mask=attn_mask, dropout_p=0.0, is_causal=is_causal, **kwargs)

    setattr(functional, "scaled_dot_product_attention", call)  # noqa: B010 - of another type
