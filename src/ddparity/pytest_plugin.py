"""A pytest plugin: hold a training or a model against one device in a test of one's own.

Installed with ddparity, it gives every suite the fixture ``ddparity`` and the mark of the same name::

    @pytest.mark.ddparity(nproc=2, global_batch=32)
    def test_my_training_computes_on_two_ranks_what_it_computes_on_one(ddparity):
        ddparity.script("train.py", "--batch-size", "{local_batch}")

The test fails with the first deviation, its cause and the command that shows more. Nothing of ddparity is imported
before a test asks for the fixture.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ddparity.trials._ladders import LadderResult

_MARK = "ddparity"
_OPTIONS = ("nproc", "global_batch", "accum", "steps", "timeout_s")


def pytest_configure(config: pytest.Config) -> None:
    """Say what the mark means, for suites with strict marks."""
    text = "ddparity(nproc=2, global_batch=None, accum=4, steps='3', timeout_s=600.0): settings of the fixture ddparity"
    config.addinivalue_line("markers", text)


class Parity:
    """Climbs from one device to several, and fails the test at the first rung that deviates.

    Args:
        store: Folder for the trials.
        options: ``nproc`` (a number of processes, or several), ``global_batch`` (samples of a step over all ranks),
            ``accum`` (micro-batches of the rung with micro-batches), ``steps`` that are recorded, ``timeout_s`` of a
            run.
    """

    def __init__(self, store: Path, **options: Any) -> None:
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise pytest.UsageError(f"pytest.mark.ddparity has no {unknown[0]!r}. It has: {', '.join(_OPTIONS)}.")
        self._store = store
        self._options = options

    def script(self, *command: str, **options: Any) -> "LadderResult":
        """Hold a training script against itself on one device.

        Args:
            command: The script and its arguments without a launcher, with the placeholders of ``ddparity ladder``.
            options: Settings for this call alone, as in the mark.

        Returns:
            The rungs, each with its trial.
        """
        return self._climb({"command": list(command)}, options)

    def recipe(self, path: str | Path, **options: Any) -> "LadderResult":
        """Hold ``model()``, ``batch(n)``, ``loss(model, batch)`` and ``optimizer(model)`` of a file against one device.

        Args:
            path: The file; the test's own (``__file__``) where it defines them.
            options: Settings for this call alone, as in the mark; ``global_batch`` is needed.
        """
        return self._climb({"command": [], "recipe": Path(path)}, options)

    def _climb(self, what: dict[str, Any], options: dict[str, Any]) -> "LadderResult":
        from ddparity.trials import Store
        from ddparity.trials._ladder import climb
        from ddparity.trials._rungs import LadderSpec

        given = {**self._options, **options}
        nproc = given.pop("nproc", 2)
        store = Store(self._store)
        spec = LadderSpec(**what, store=store, nproc=(nproc,) if isinstance(nproc, int) else tuple(nproc), **given)
        result = climb(spec)
        if result.status != "PASS":
            pytest.fail(_told(result, store.root), pytrace=False)
        return result


def _told(result: "LadderResult", store: Path) -> str:
    lines = [f"ddparity: {result.status}"]
    for rung in result.rungs:
        if rung.status in ("PASS", "SKIPPED", "NOT_REACHED"):
            continue
        change = f" ({rung.change})" if rung.change else ""
        lines.append(f"rung {rung.label}, {rung.title}{change}: {rung.status}: {rung.reason}")
        if rung.finding is not None:
            cause = rung.finding["cause"]
            lines.append(f"{rung.finding['phase']} of {rung.finding['name']}: {cause['text']} [{cause['code']}]")
            lines.append(f"next: {rung.finding['next']}")
    if result.next:
        lines.append(f"more: {result.next} --store {store}")
    return "\n".join(lines)


@pytest.fixture
def ddparity(request: pytest.FixtureRequest, tmp_path: Path) -> Parity:
    """Return what asserts parity, with the settings of ``@pytest.mark.ddparity``."""
    mark = request.node.get_closest_marker(_MARK)
    return Parity(tmp_path / "ddparity", **({} if mark is None else mark.kwargs))
