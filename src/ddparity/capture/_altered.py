"""Runs that are altered on request: in float64, with inputs moved by one unit in the last place, without dropout.

Recording by itself changes nothing. These options change the training, each in one way, and the trial's facts say so.
Only calls that the script itself makes of a model are altered on entry; what the model calls follows from them.
``torch.compile`` is switched off: what is examined is the computation, and a compiled one would not see the change.
"""

import functools
import threading
from typing import Any

import torch
from torch import nn

from ddparity.trace import CaptureConfig

from ._neutral import install_neutral
from ._perturb import Perturbation
from ._promote import Promotion


def install_alterations(config: CaptureConfig) -> None:
    """Alter this process as its configuration asks; nothing happens if it asks for nothing."""
    if config.neutral_dropout:
        install_neutral()
    if config.dtype is None and not config.perturb:
        return
    promotion = Promotion() if config.dtype == "float64" else None
    perturbation = Perturbation() if config.perturb else None
    if promotion is not None:
        promotion.install()
    _around_calls(promotion, perturbation)
    _without_compiler()


def _around_calls(promotion: Promotion | None, perturbation: Perturbation | None) -> None:
    owner: Any = nn.Module
    plain = owner.__call__
    thread, depth = threading.get_ident(), 0

    @functools.wraps(plain)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if threading.get_ident() != thread:
            return plain(module, *args, **kwargs)
        if depth == 0 and next(module.parameters(), None) is not None:
            if perturbation is not None:
                args, kwargs = perturbation.enter(args, kwargs)
            if promotion is not None:
                args, kwargs = promotion.enter(module, args, kwargs)
        depth += 1
        if promotion is not None:
            promotion.depth = depth
        try:
            output = plain(module, *args, **kwargs)
        finally:
            depth -= 1
            if promotion is not None:
                promotion.depth = depth
        return output if perturbation is None else perturbation.leave(module, args, output)

    owner.__call__ = call


def _without_compiler() -> None:
    def stay(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        return None

    def same(model: Any = None, **kwargs: Any) -> Any:
        return (lambda each: each) if model is None else model

    places: list[Any] = [nn.Module, torch]
    for place, function in zip(places, (stay, same), strict=True):
        place.compile = function
