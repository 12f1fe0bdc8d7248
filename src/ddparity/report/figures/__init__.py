"""Pictures as markup: plain data in, escaped HTML and SVG out, for the report, the gateway's pages and notebooks.

Each function returns one or more ``<figure>`` elements that stand in any page: no script, no ``style`` attribute, and
no rule of CSS beyond ``STYLE``, whose selectors all begin with ``.ddp-``. A picture that would be empty is an empty
text. What a colour says is said by a glyph or a word too, and the numbers stand in a table beside each picture.
"""

from ddparity.report.figures._calls import calls_figure
from ddparity.report.figures._errors import errors_figure
from ddparity.report.figures._frame import STYLE
from ddparity.report.figures._memory import memory_figure
from ddparity.report.figures._metric import metric_figure
from ddparity.report.figures._samples import samples_figure

__all__ = ["STYLE", "calls_figure", "errors_figure", "memory_figure", "metric_figure", "samples_figure"]
