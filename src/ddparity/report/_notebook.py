"""A verdict in a notebook: it shows itself, in a box of its own that leaves the notebook's look alone."""

from collections.abc import Callable

from ddparity._errors import DdparityError
from ddparity.judge import Pictures, Verdict
from ddparity.report import _heat
from ddparity.report._html import DARK, LIGHT, RULES, drawings, opening
from ddparity.report.figures import STYLE as FIGURE_STYLE

_BOX = ".ddparity-verdict"
_STYLE = f"""
{_BOX} {{ {LIGHT} {_heat.LIGHT} }}
@media (prefers-color-scheme: dark) {{ {_BOX} {{ {DARK} {_heat.DARK} }} }}
{_BOX} {{ padding: 1rem; border-radius: .5rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif;
* {{ box-sizing: border-box; }} tr {{ background: none !important; }} th, td {{ color: var(--text); }}
{RULES}{_heat.RULES} }}
{FIGURE_STYLE}"""


def render_fragment(verdict: Verdict, pictures: Pictures | None = None) -> str:
    """Return a verdict as markup that stands in another page: the cards, the first deviations, the pictures."""
    drawn = drawings(verdict, pictures)
    folded = f"<details><summary>Pictures</summary>{drawn}</details>" if drawn else ""
    return f'<div class="{_BOX[1:]}"><style>{_STYLE}</style>{opening(verdict)}{folded}</div>'


class ShownVerdict(Verdict, kw_only=True, dict=True):
    """A verdict that shows itself in a notebook; in everything else it is the verdict that it was made of."""

    @classmethod
    def of(cls, verdict: Verdict, measure: Callable[[], Pictures]) -> "ShownVerdict":
        """Return a verdict that shows itself.

        Args:
            verdict: The verdict.
            measure: Returns the pictures; called the first time that they are shown, and not before.
        """
        shown = cls(**{name: getattr(verdict, name) for name in Verdict.__struct_fields__})
        shown.__dict__["measure"] = measure
        return shown

    def _repr_html_(self) -> str:
        kept = self.__dict__
        if "pictures" not in kept:
            try:
                kept["pictures"] = kept["measure"]() if "measure" in kept else None
            except (DdparityError, OSError):  # the trials are gone: the verdict is still there
                kept["pictures"] = None
        return render_fragment(self, kept["pictures"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Verdict):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Verdict.__struct_fields__)
