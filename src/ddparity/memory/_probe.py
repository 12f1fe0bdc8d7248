"""The process in which a script's first steps are tried: ``python -m ddparity.memory._probe SPEC TARGET ARGUMENTS``.

``SPEC`` is a JSON file that ``ddparity memory`` wrote; what is found goes to ``found.json`` beside it.
"""

import gc
import json
import os
import runpy
import signal
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddparity._linux import die_with_parent

from ._fit import Point
from ._predict import FAKE, REAL, extrapolate
from ._probe_guard import Wrappers, spare_files, stand_in
from ._probe_steps import Job, Steps, Unable
from ._probe_values import Values, let_fakes_be_shown

_SAMPLES = 2
"""Samples of the real step that tells the values which a script reads."""


class Search:
    """Tries fakes, then fakes with the values of a real step, then small real batches."""

    def __init__(self, spec: dict[str, Any], folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self.wrappers = Wrappers()
        self.late = False
        self.steps = Steps(device=spec["device"], batch_dim=spec["batch_dim"], folder=folder, decide=self.decide)

    def decide(self, steps: Steps) -> None:
        """Run every job and end the process; a fork leaves by an exception on the way."""
        try:
            self.tell(self.search(steps))
        except Unable as error:
            self.tell({"error": str(error)})
        os._exit(0)

    def search(self, steps: Steps) -> dict[str, Any]:
        """Return what was found, by the first way that works for all batches."""
        how, values = FAKE, None
        try:
            points = self._either(steps, None)
        except Unable as first:
            try:
                values = self._values(steps)
                points = self._either(steps, values)
                how = f"{FAKE} and the values that a real step of {_SAMPLES} samples read"
            except Unable as second:
                if not (first.dependent or second.dependent) or self.spec["shard"]:
                    raise second from first
                how, points = REAL, self._real(steps)
        assert steps.shape is not None
        whole = None
        if self.spec["shard"]:
            whole = steps.run(
                Job(batch=points[-1].batch, seq=points[-1].seq, fake=True, values=values, late=self.late)
            )[0].peak
        sharded = any(hasattr(type(each), "_get_fsdp_state") for each in gc.get_objects())
        return {
            "how": how,
            "points": [asdict(point) for point in points],
            "own_batch": steps.shape.batch,
            "own_seq": steps.shape.seq,
            "wrappers": sorted(self.wrappers.names | ({"fsdp"} if sharded else set())),
            "notes": self.wrappers.notes,
            "whole": whole,
        }

    def _either(self, steps: Steps, values: Values | None) -> list[Point]:
        """Change what there is when the model is called; if sizes do not fit then, also what is made later."""
        try:
            return self._all(steps, values)
        except Unable as error:
            if error.dependent or self.late:
                raise
            self.late = True
            try:
                return self._all(steps, values)
            except Unable:
                self.late = False
                raise error from None

    def _all(self, steps: Steps, values: Values | None) -> list[Point]:
        spec = self.spec
        return [
            steps.run(Job(batch=batch, seq=seq, fake=True, shard=spec["shard"], values=values, late=self.late))[0]
            for seq in spec["seqs"]
            for batch in spec["batches"]
        ]

    def _values(self, steps: Steps) -> Values:
        return steps.run(Job(batch=_SAMPLES, seq=None, fake=False, record=True, late=self.late))[1]

    def _real(self, steps: Steps) -> list[Point]:
        found: list[Point] = []
        for seq in self.spec["seqs"]:

            def run(batch: int, seq: int | None = seq) -> Point:
                return steps.run(Job(batch=batch, seq=seq, fake=False, late=self.late))[0]

            found += extrapolate(run, self.spec["batches"])
        return found

    def tell(self, found: dict[str, Any]) -> None:
        """Write what was found."""
        (self.folder / "found.json").write_text(json.dumps(found))


def main() -> None:
    """Run a script up to its first forward; what comes then is the search's."""
    os.register_at_fork(after_in_child=lambda: die_with_parent(signal.SIGKILL))
    spec_file, *target = sys.argv[1:]
    folder = Path(spec_file).parent
    spec = json.loads(Path(spec_file).read_text())
    search = Search(spec, folder)
    stand_in(search.wrappers, spec["device"], spec["num_ranks"])
    let_fakes_be_shown()
    search.steps.watch()
    if spec["launched"]:
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(spec["num_ranks"]), "MASTER_ADDR": "localhost"}
        os.environ |= {"MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": str(spec["num_ranks"]), "GROUP_RANK": "0"}
    spare_files(search.wrappers)
    error: BaseException | None = None
    try:
        _run(target)
    except SystemExit as ended:
        error = ended if ended.code else None
    except BaseException as raised:
        error = raised
        if search.steps.job is None:
            traceback.print_exc()
    if search.steps.job is not None:
        if error is None or isinstance(error, SystemExit):
            search.steps.finish()
        search.steps.fail(error or RuntimeError("it ended"))
    told = "it ended without a forward of a module that trains" if error is None else _told(error)
    search.tell({"error": told})
    sys.stdout.flush()
    os._exit(0)


def _told(error: BaseException) -> str:
    text = str(error).strip()[:300]
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def _run(target: list[str]) -> None:
    if target[0] == "-m":
        sys.argv = target[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = target
        sys.path[0] = str(Path(target[0]).resolve().parent)
        runpy.run_path(target[0], run_name="__main__")


if __name__ == "__main__":
    main()
