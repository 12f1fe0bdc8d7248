"""Prediction of the peak of a training for batch sizes, without a device and without allocating it.

What needs torch (``measure``, ``predict``) is loaded when it is asked for.
"""

from typing import Any

from ._allowance import Allowance, given_allowance
from ._curve import render_curve
from ._fit import Bands, Forecast, Point, forecast, parse_size, size
from ._measured import read_measured
from ._question import Question, ask_command, ask_recipe
from ._render import render_forecast

__all__ = [
    "Allowance",
    "Bands",
    "Forecast",
    "Point",
    "Question",
    "ask_command",
    "ask_recipe",
    "forecast",
    "given_allowance",
    "measure",
    "parse_size",
    "predict",
    "read_measured",
    "render_curve",
    "render_forecast",
    "size",
]


def __getattr__(name: str) -> Any:
    if name in ("measure", "predict"):
        from . import _predict

        return getattr(_predict, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
