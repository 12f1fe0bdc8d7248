"""Prediction of the peak of a training for batch sizes, without a device and without allocating it."""

from ._fit import Forecast, Point, forecast, parse_size, size
from ._predict import predict
from ._render import render_curve, render_forecast

__all__ = ["Forecast", "Point", "forecast", "parse_size", "predict", "render_curve", "render_forecast", "size"]
