"""Reports: pure functions of a verdict."""

from ddparity.report._causes import render_cause
from ddparity.report._data import render_data
from ddparity.report._data_html import render_data_html
from ddparity.report._html import render_html, report_body, report_layers, report_style
from ddparity.report._json import render_json
from ddparity.report._notebook import ShownVerdict, render_fragment
from ddparity.report._plan import render_plan
from ddparity.report._resume import render_resumption
from ddparity.report._text import render_text
from ddparity.report.figures import STYLE, calls_figure, errors_figure, memory_figure, metric_figure, samples_figure

__all__ = [
    "STYLE",
    "ShownVerdict",
    "calls_figure",
    "errors_figure",
    "memory_figure",
    "metric_figure",
    "render_cause",
    "render_data",
    "render_data_html",
    "render_fragment",
    "render_html",
    "render_json",
    "render_plan",
    "render_resumption",
    "render_text",
    "report_body",
    "report_layers",
    "report_style",
    "samples_figure",
]
