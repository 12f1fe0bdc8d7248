"""Recording changes no bit of a training: not its parameters, its random numbers, its collectives or its graphs."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from capture_harness import SCRIPTS, Recorded, run

pytestmark = pytest.mark.slow

MODELS = ("mlp", "cnn", "transformer", "checkpoint", "reentrant", "breaking", "in_place", "compiled")
STEPS = 3
# Of each model all steps but the last: what is recorded, what is not, and the change between them.
WINDOWS = [(STEPS * number, STEPS * (number + 1) - 1) for number in range(len(MODELS))]
CONFIG = {"steps": ",".join(f"{start}:{stop}" for start, stop in WINDOWS), "level": "activations"}
Results = dict[int, dict[str, dict[str, Any]]]


def results_of(done: subprocess.CompletedProcess[str]) -> Results:
    assert done.returncode == 0, done.stderr
    assert "ddparity" not in done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return {int(rank): json.loads(result) for _, rank, result in lines}


@pytest.fixture(scope="module", params=[1, 2], ids=["single", "ddp"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results, Path]:
    """Train bare and recorded; the second finds what the compiler made for the first, if its graphs are the same."""
    where = tmp_path_factory.mktemp("identical")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.getbasetemp() / "inductor")}
    cache |= {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    launcher = [] if request.param == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, SCRIPTS / "identical.py", *MODELS]
    bare = results_of(run(*command, **cache))
    config = json.dumps({"trial_dir": str(where / "trial"), **CONFIG})
    recorded = results_of(run(*command, **cache, DDPARITY_CAPTURE=config))
    assert len(bare) == len(recorded) == request.param
    return bare, recorded, where / "trial"


@pytest.mark.parametrize("model", MODELS)
def test_a_recorded_run_is_the_same_run(both: tuple[Results, Results, Path], model: str) -> None:
    bare, recorded, _ = both
    for rank in bare:
        assert recorded[rank][model] == bare[rank][model]
    if model in ("breaking", "in_place", "compiled"):
        assert bare[0][model]["graphs"] > 0


def test_the_runs_can_be_told_apart(both: tuple[Results, Results, Path]) -> None:
    """The digest is one of training: other models and other ranks have others."""
    bare, _, _ = both
    assert len({result["digest"] for result in bare[0].values()}) > 4
    if len(bare) == 2:
        assert bare[0]["mlp"]["digest"] != bare[1]["mlp"]["digest"]


def test_it_was_recorded(both: tuple[Results, Results, Path]) -> None:
    bare, _, trial = both
    assert sorted(path.name for path in trial.glob("rank-*")) == [f"rank-{rank:05d}" for rank in sorted(bare)]
    for folder in trial.glob("rank-*"):
        recorded = Recorded(folder)
        assert recorded.facts.status == "FINISHED"
        assert recorded.facts.partial == []
        assert recorded.facts.world_size == len(bare)
        assert recorded.steps == list(range(STEPS * len(MODELS)))
        assert recorded.steps_with_tensors() == [step for window in WINDOWS for step in range(*window)]
        hooks_in_both = {d.site.name for d in recorded.digests("activation", 0)}
        assert "0" in hooks_in_both
        local = recorded.digests("local_gradient", 0)
        assert len(local) == (12 if len(bare) == 2 else 0)


def test_ddp_synchronises_what_is_recorded(both: tuple[Results, Results, Path]) -> None:
    """Local gradients differ between ranks, synchronised ones do not, and are their mean."""
    bare, _, trial = both
    if len(bare) == 1:
        pytest.skip("one process")
    first, second = (Recorded(trial / f"rank-{rank:05d}") for rank in (0, 1))
    for name in ("0.weight", "4.bias"):
        mine, theirs = (r.digests("synced_gradient", 0, name)[0].digest for r in (first, second))
        assert mine.hash == theirs.hash
        local = [d.digest.sum for r in (first, second) for d in r.digests("local_gradient", 0, name)]
        assert len(set(local)) == 4
        assert mine.sum == pytest.approx(sum(local) / 2, rel=1e-4, abs=1e-6)
