"""What the tests of capture share: snippets run in forked children, and a short way to ask what was recorded."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ddparity.trace import DigestRow, EventRow, RankFacts, RankTrace, read_json

SCRIPTS = Path(__file__).parent / "scripts"


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that a test starts."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **more}


def run(*command: str | Path, timeout: float = 100, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script, or ``-m`` and a module, to its end."""
    return subprocess.run(
        [sys.executable, *map(str, command)], env=environment(**more), capture_output=True, text=True, timeout=timeout
    )


class Recorded:
    """What one rank recorded, in the words of the tests."""

    def __init__(self, folder: Path) -> None:
        self.trace = RankTrace(folder, read_json(folder / "rank.json", RankFacts))

    @property
    def facts(self) -> RankFacts:
        return self.trace.facts

    def digests(self, site: str, step: int | None = None, name: str | None = None) -> list[DigestRow]:
        return [
            d
            for d in self.trace.digests
            if d.site.site == site and step in (None, d.step) and name in (None, d.site.name)
        ]

    def names(self, site: str, step: int = 0) -> list[str]:
        """Names (and parts) in the order in which they were recorded."""
        return [d.site.name + (f":{d.site.part}" if d.site.part else "") for d in self.digests(site, step)]

    def events(self, kind: str, step: int | None = None) -> list[EventRow]:
        return [e for e in self.trace.events if e.kind == kind and step in (None, e.step)]

    @property
    def steps(self) -> list[int]:
        return [e.step for e in self.events("step")]

    @property
    def not_recorded(self) -> list[str]:
        return [f"{e.name}: {e.data['reason']}" for e in self.events("not_recorded")]

    @property
    def optimizers(self) -> list[tuple[int, str]]:
        return [(e.step, e.name) for e in self.events("optimizer")]

    def batches(self, *, training: bool = True) -> list[tuple[int, int, str, int]]:
        """Step, number, root and size of the batches."""
        return [(s.step, s.batch, s.root, len(s.ids)) for s in self.trace.samples if s.training == training]

    def steps_with_tensors(self) -> list[int]:
        return sorted({d.step for d in self.trace.digests if d.site.site == "parameter_after"})


class Snippets:
    """The snippets of some modules of ``tests/scripts``, all run once."""

    def __init__(self, out: Path, *modules: str) -> None:
        self.out = out
        done = run(SCRIPTS / "forked.py", out, *modules)
        assert done.returncode == 0, done.stderr

    def code(self, name: str) -> int:
        return int((self.out / f"{name}.code").read_text())

    def log(self, name: str) -> str:
        return (self.out / f"{name}.log").read_text()

    def printed(self, name: str, word: str) -> list[float]:
        """Return the numbers that a snippet printed after ``word``."""
        lines = [line.split()[1:] for line in self.log(name).splitlines() if line.startswith(word)]
        return [float(number) for line in lines for number in line]

    def folders(self, name: str) -> list[str]:
        trial = self.out / name
        return sorted(path.name for path in trial.glob("rank-*")) if trial.exists() else []

    def __call__(self, name: str, rank: int = 0) -> Recorded:
        """Return what a snippet that ended well recorded without a fault or a word on the terminal."""
        assert self.code(name) == 0, self.log(name)
        assert "ddparity" not in self.log(name), self.log(name)
        recorded = Recorded(self.out / name / f"rank-{rank:05d}")
        assert recorded.facts.partial == []
        return recorded


def counted(items: Any) -> dict[Any, int]:
    """Return how often each item occurs."""
    return dict(Counter(items))
