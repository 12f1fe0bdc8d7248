"""The ladder without trainings: its rungs, where it stops, what it runs again, what it prints."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ddparity._errors import UsageError
from ddparity.cli._app import build
from ddparity.cli.ladder import render_ladder
from ddparity.judge import Cause, Finding, LayerVerdict, Phase, Status, Verdict
from ddparity.trace import ControlProof, RankFacts, RankStatus, TrialFacts, TrialStatus, write_atomically
from ddparity.trials import Store
from ddparity.trials import _ladder as ladder
from ddparity.trials._facts import find_script, sha256_of
from ddparity.trials._rungs import LadderSpec, rungs_of

TRAIN = ["train.py", "--batch-size", "{local_batch}"]


def spec(folder: Path, **settings: Any) -> LadderSpec:
    return LadderSpec(**({"command": TRAIN, "store": Store(folder / "store"), "global_batch": 32} | settings))


def commands(made: LadderSpec) -> dict[tuple[int, int], str]:
    return {
        (r.number, r.nproc): " ".join(r.command).replace(sys.executable, "PY") for r in rungs_of(made) if not r.skipped
    }


def test_every_rung_has_its_command(tmp_path):
    command = ["train.py", "--batch-size", "{local_batch}", "--accum={accum}", "--dtype", "{dtype}"]
    made = spec(tmp_path, command=command, nproc=(1, 2, 4, 8), dtypes=("float32", "bfloat16"))
    run = "PY -m torch.distributed.run --standalone --nproc-per-node"
    assert commands(made) == {
        (0, 1): "PY train.py --batch-size 32 --accum=1 --dtype float32",
        (1, 1): "PY train.py --batch-size 32 --accum=1 --dtype float32",
        (2, 1): "PY train.py --batch-size 8 --accum=4 --dtype float32",
        (3, 1): f"{run} 1 train.py --batch-size 32 --accum=1 --dtype float32",
        (4, 2): f"{run} 2 train.py --batch-size 16 --accum=1 --dtype float32",
        (5, 4): f"{run} 4 train.py --batch-size 8 --accum=1 --dtype float32",
        (5, 8): f"{run} 8 train.py --batch-size 4 --accum=1 --dtype float32",
        (7, 1): "PY train.py --batch-size 32 --accum=1 --dtype bfloat16",
    }


def test_rungs_without_a_place_in_the_command_are_skipped_with_the_reason(tmp_path):
    skipped = {r.shown: r.skipped for r in rungs_of(spec(tmp_path, nproc=(2,))) if r.skipped}
    assert skipped["2"] == "the command has no {accum}"
    assert skipped["2b"] == "the judge computes it from the ranks' digests; --recipe reruns it"
    assert skipped["3"] == "--nproc does not list 1"
    assert skipped["5"] == "--nproc lists no more than 2"
    assert skipped["6"] == "the command has no {parallel}"
    assert skipped["7"] == "the command has no {dtype}"
    command = ["train.py", "{dtype}"]
    assert {r.number: r.skipped for r in rungs_of(spec(tmp_path, command=command))}[
        7
    ] == "--dtype names no second dtype"


def test_a_recipe_has_a_rung_for_the_arithmetic_of_ranks(tmp_path):
    found = {r.shown: r for r in rungs_of(spec(tmp_path, command=[], recipe=Path("r.py"), nproc=(1, 2, 4)))}
    recipe = "-m ddparity.workloads.recipe r.py --batch 32 --accum"
    assert " ".join(found["2"].command[1:]) == f"{recipe} 4"
    assert " ".join(found["2b"].command[1:]) == f"{recipe} 1 --as-ranks 2"
    assert found["2b"].label == "2b"
    assert "no communication" in found["2b"].meaning
    with pytest.raises(UsageError, match="--global-batch"):
        spec(tmp_path, recipe=Path("r.py"))


def test_the_target_parallelism_is_the_last_of_the_list(tmp_path):
    command = ["train.py", "--parallel", "{parallel}"]
    found = {r.shown: r for r in rungs_of(spec(tmp_path, command=command, nproc=(1, 2), parallel=("ddp", "fsdp")))}
    assert found["6"].command[-5:] == ["--nproc-per-node", "2", "train.py", "--parallel", "fsdp"]
    assert found["4"].command[-1] == "ddp"
    with pytest.raises(UsageError, match="--parallel ddp,fsdp"):
        rungs_of(spec(tmp_path, command=command))


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        (["train.py"], "PY train.py"),
        (["-m", "pkg.train", "-x"], "PY -m pkg.train -x"),
        (["python", "-u", "train.py"], "python train.py"),
        (["/opt/python3.12", "-m", "pkg"], "/opt/python3.12 -m pkg"),
        (["env", "A=1", "python", "train.py"], "env A=1 python train.py"),
    ],
)
def test_the_command_may_name_its_interpreter(tmp_path, given, begins):
    assert commands(spec(tmp_path, command=given))[0, 1] == begins


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ["torchrun", "train.py"]}, "'torchrun' is a launcher, and the ladder launches. Give the script"),
        ({"command": ["python", "-m", "torch.distributed.run", "t.py"]}, "'-m torch.distributed.run' is a launcher"),
        ({"command": ["bash", "train.sh"]}, "'bash' is no script"),
        ({"command": []}, "'' is no script"),
        (
            {"command": ["t.py", "{localbatch}"]},
            r"The placeholder \{localbatch\} is not known. Did you mean \{local_batch\}",
        ),
        (
            {"global_batch": None},
            r"The command has \{local_batch\}: say how large it is, for example --global-batch 32",
        ),
        ({"nproc": ()}, "--nproc needs numbers of processes"),
        ({"nproc": (0, 1)}, "each at least 1"),
        ({"global_batch": 0}, "--global-batch 0 cannot be used"),
        ({"accum": 1}, "--accum 1 cannot be used"),
        ({"dtypes": ()}, "--dtype needs a name"),
        ({"steps": "0"}, "--steps '0' cannot be used"),
        ({"name": "../x"}, "cannot be the name of a trial"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        rungs_of(spec(tmp_path, **settings))


def test_a_batch_that_does_not_divide_names_the_sizes_that_would(tmp_path):
    with pytest.raises(UsageError) as caught:
        rungs_of(spec(tmp_path, nproc=(1, 2, 3)))
    assert str(caught.value) == (
        "--global-batch 32 cannot be shared evenly by the 3 processes of rung 5. "
        "Sizes that every rung can share: 24, 30, 36, 42."
    )
    with pytest.raises(UsageError, match=r"by the 4 micro-batches of rung 2\. Sizes .*: 4, 8, 12\."):
        rungs_of(spec(tmp_path, command=[*TRAIN, "{accum}"], global_batch=6))
    # a script that cuts the batch itself may know what to do with a rest
    assert len(rungs_of(spec(tmp_path, command=["train.py", "{global_batch}"], nproc=(1, 3)))) > 4


class Fake:
    """Stands in for running and judging: writes trials, and lets chosen rungs deviate or fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **outcomes: str) -> None:
        self.outcomes = outcomes
        self.ran: list[str] = []
        self.against: str | None = None
        self.source: Path | None = None
        monkeypatch.setattr(ladder, "record", self.record)
        monkeypatch.setattr(ladder, "compare_trials", self.compare)

    def record(self, given: Any) -> TrialFacts:
        self.ran.append(given.name)
        outcome = self.outcomes.get(given.name.replace("-", "_"), "PASS")
        trial_id, folder = given.store.create(given.name)
        script = find_script(given.command, Path.cwd())
        facts = TrialFacts(
            id=trial_id, name=given.name, control=given.control, command=given.command, cwd=str(Path.cwd()),
            steps=given.steps, stop_after_steps=given.stop_after_steps, exit_code=0, dtype=given.dtype,
            env=ladder.allowed_environment(ladder.os.environ),
            status=TrialStatus.COMPLETED, against=self.against, script_sha256=sha256_of(script) if script else None,
        )  # fmt: skip
        if given.control:
            facts.proof = ControlProof(status="PROVED", repeat=trial_id)
            if outcome == "DEVIATES":
                facts.proof = ControlProof(status="FAILED", reason="not repeatable: step 0", repeat=trial_id)
            elif outcome == "NOTHING":
                facts.proof = ControlProof(status="FAILED", reason="nothing was recorded")
        if outcome in ("FAILED", "ABORTED"):
            facts.status, facts.exit_code = TrialStatus.FAILED, 7
        if outcome == "INTERRUPTED":
            facts.status = TrialStatus.INTERRUPTED
        world = (
            int(given.command[given.command.index("--nproc-per-node") + 1])
            if "--nproc-per-node" in given.command
            else 1
        )
        for rank in range(world):
            self.write_rank(folder, rank, world, RankStatus.RUNNING if outcome == "FAILED" else RankStatus.FINISHED)
        write_atomically(folder / "trial.json", msgspec.json.encode(facts))
        return facts

    def write_rank(self, folder: Path, rank: int, world: int, status: RankStatus) -> None:
        facts = RankFacts(rank=rank, local_rank=rank, world_size=world, pid=1, hostname="h", status=status)
        if self.source is not None:
            facts.sources = {str(self.source): (sha256_of(self.source) or "")[:16]}
        (folder / f"rank-{rank:05d}").mkdir()
        write_atomically(folder / f"rank-{rank:05d}" / "rank.json", msgspec.json.encode(facts))

    def compare(self, control: Path, candidate: Path) -> Verdict:
        outcome = self.outcomes.get("_".join(candidate.name.split("-")[2:-1]), "PASS")
        status = {"DEVIATES": Status.DEVIATES, "INCONCLUSIVE": Status.INCONCLUSIVE}.get(outcome, Status.PASS)
        cause = Cause(code="grad.summed", text="Summed.", confidence="proved")
        found = Finding(
            layer="numerics", step=0, phase=Phase.BACKWARD, name="fc.weight", site="synced_gradient", cause=cause
        )
        layer = LayerVerdict(status=status, reason=f"because of {candidate.name[-4:]}")
        return Verdict(
            control=control.name, candidate=candidate.name, partial=False, layers={"numerics": layer},
            findings=[found] if status is Status.DEVIATES else [],
        )  # fmt: skip


def statuses(result: ladder.LadderResult) -> dict[str, str]:
    return {f"{r.number}-{r.nproc}": r.status for r in result.rungs if r.status != "SKIPPED"}


@pytest.fixture
def train(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass")
    return tmp_path


FULL: dict[str, Any] = {"command": [*TRAIN, "--accum", "{accum}"], "nproc": (1, 2, 4)}


def test_a_healthy_climb_goes_to_the_top(train, monkeypatch):
    Fake(monkeypatch)
    said: list[str] = []
    result = ladder.climb(spec(train, **FULL), said.append)
    assert statuses(result) == dict.fromkeys(["0-1", "1-1", "2-1", "3-1", "4-2", "5-4"], "PASS")
    assert (result.status, result.stopped_at, result.variable) == ("PASS", None, None)
    changes = {rung.number: (rung.variable, rung.change) for rung in result.rungs if rung.status == "PASS"}
    assert changes[1] == ("record:dtype", "--dtype not set -> float64")
    assert changes[2] == ("micro_batches", "micro_batches (--batch-size 32 -> 8, --accum 1 -> 4)")
    assert changes[3] == ("launcher", "launcher python -> torchrun")
    assert changes[4] == ("world_size", "world_size 1 -> 2")
    assert changes[5] == ("world_size", "world_size 2 -> 4")
    assert said[0] == "rung 0: one process, run twice: the control ..."
    assert said[1].startswith("rung 0: PASS (")


@pytest.mark.parametrize(
    ("where", "number", "variable"),
    [
        ("ladder_0", 0, None),
        ("ladder_1", 1, "record:dtype"),
        ("ladder_2", 2, "micro_batches"),
        ("ladder_3", 3, "launcher"),
        ("ladder_4_nproc2", 4, "world_size"),
        ("ladder_5_nproc4", 5, "world_size"),
    ],
)
def test_the_climb_stops_at_the_first_rung_that_deviates(train, monkeypatch, where, number, variable):
    fake = Fake(monkeypatch, **{where: "DEVIATES"})
    result = ladder.climb(spec(train, **FULL))
    assert (result.status, result.stopped_at, result.variable) == ("DEVIATES", number, variable)
    assert fake.ran[-1] == where.replace("_", "-")
    assert [s for n, s in statuses(result).items() if int(n[0]) > number] == ["NOT_REACHED"] * (6 - len(fake.ran))
    assert result.next.startswith("ddparity compare ") is (number > 0)
    text = render_ladder(result, " --store x")
    assert f"DEVIATES: stopped at rung {number}, " in text
    assert "\n  means     " in text
    if number:
        assert "  finding   step 0, backward: synced gradient of fc.weight\n" in text
        assert text.endswith(" --store x")


def test_an_inconclusive_rung_does_not_stop_the_climb(train, monkeypatch):
    Fake(monkeypatch, ladder_2="INCONCLUSIVE")
    result = ladder.climb(spec(train, **FULL))
    assert (result.status, result.stopped_at) == ("INCONCLUSIVE", None)
    assert statuses(result)["5-4"] == "PASS"


@pytest.mark.parametrize(("outcome", "status"), [("FAILED", "FAILED"), ("INTERRUPTED", "INTERRUPTED")])
@pytest.mark.parametrize("where", ["ladder_0", "ladder_4_nproc2"])
def test_a_command_that_fails_ends_the_climb(train, monkeypatch, outcome, status, where):
    Fake(monkeypatch, **{where: outcome})
    result = ladder.climb(spec(train, **FULL))
    stopped = next(rung for rung in result.rungs if rung.status == status)
    assert (result.status, result.stopped_at) == (status, stopped.number)
    assert statuses(result)["5-4"] == "NOT_REACHED"
    if status == "FAILED":
        assert stopped.reason.startswith("the command failed (exit code 7); its output: ")
        assert stopped.reason.endswith("output.log")


def test_an_abort_after_all_work_was_done_is_no_failure(train, monkeypatch):
    Fake(monkeypatch, ladder_4_nproc2="ABORTED")
    assert ladder.climb(spec(train, **FULL)).status == "PASS"


def test_a_control_that_recorded_nothing_leaves_the_rest_unreached(train, monkeypatch):
    Fake(monkeypatch, ladder_0="NOTHING")
    result = ladder.climb(spec(train, **FULL))
    assert (result.status, result.rungs[0].reason) == ("INCONCLUSIVE", "nothing was recorded")
    assert statuses(result)["2-1"] == "NOT_REACHED"


def test_a_climb_goes_on_where_it_stopped(train, monkeypatch):
    fake = Fake(monkeypatch, ladder_3="FAILED")
    fake.source = train / "train.py"
    made = spec(train, **FULL)
    ladder.climb(made)
    assert fake.ran == ["ladder-0", "ladder-1", "ladder-2", "ladder-3"]
    fake.outcomes = {}
    result = ladder.climb(made)
    assert fake.ran[4:] == ["ladder-3", "ladder-4-nproc2", "ladder-5-nproc4"]
    assert [r.reused for r in result.rungs if r.trial] == [True, True, True, False, False, False]
    ladder.climb(made)
    assert len(fake.ran) == 7, "nothing is left to run"
    ladder.climb(spec(train, **FULL, fresh=True))
    assert len(fake.ran) == 13


@pytest.mark.parametrize("changed", ["script", "imported", "steps", "environment", "folder", "batch"])
def test_a_rung_runs_again_when_anything_changed(train, monkeypatch, changed):
    fake = Fake(monkeypatch)
    fake.source = train / "model.py"
    fake.source.write_text("a = 1")
    settings: dict[str, Any] = {}
    ladder.climb(spec(train, nproc=(2,)))
    if changed == "script":
        (train / "train.py").write_text("pass  # changed")
    elif changed == "imported":
        fake.source.write_text("a = 2")
    elif changed == "steps":
        settings["steps"] = "2"
    elif changed == "environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "17")
    elif changed == "folder":
        (train / "other").mkdir()
        monkeypatch.chdir(train / "other")
    else:
        settings["global_batch"] = 64
    ladder.climb(spec(train, nproc=(2,), **settings))
    assert fake.ran == ["ladder-0", "ladder-1", "ladder-4-nproc2"] * 2


def test_a_trial_of_unknown_code_is_not_taken(train, monkeypatch):
    fake = Fake(monkeypatch)
    ladder.climb(spec(train, nproc=(2,)))
    ladder.climb(spec(train, nproc=(2,)))
    assert len(fake.ran) == 6


def test_the_result_is_one_json_document(train, monkeypatch):
    Fake(monkeypatch, ladder_3="DEVIATES")
    document = json.loads(msgspec.json.encode(ladder.climb(spec(train, **FULL))))
    assert (document["schema"], document["stopped_at"], document["variable"]) == (1, 3, "launcher")
    assert document["meaning"].startswith("the wrapper")
    deviating = next(rung for rung in document["rungs"] if rung["status"] == "DEVIATES")
    assert deviating["finding"]["cause"]["code"] == "grad.summed"


@pytest.mark.parametrize(
    ("where", "code"), [("", 0), ("DEVIATES", 1), ("INCONCLUSIVE", 3), ("FAILED", 4), ("INTERRUPTED", 130)]
)
def test_exit_codes(train, monkeypatch, capsys, where, code):
    Fake(monkeypatch, **({"ladder_4_nproc2": where} if where else {}))
    arguments = ["ladder", "--nproc", "2", "--global-batch", "32", "--store", "s", "--json", "--", *TRAIN]
    with pytest.raises(SystemExit) as caught:
        build(arguments)(arguments)
    assert caught.value.code == code
    printed = capsys.readouterr()
    assert json.loads(printed.out)["schema"] == 1
    assert "ddparity: rung 0: PASS" in printed.err


def test_numbers_of_processes_are_checked(train):
    arguments = ["ladder", "--nproc", "1,two", "--", "train.py"]
    with pytest.raises(UsageError, match=r"--nproc '1,two' cannot be used\. Give numbers"):
        build(arguments)(arguments, standalone_mode=False)


def test_the_table_is_aligned(train, monkeypatch):
    Fake(monkeypatch)
    lines = render_ladder(ladder.climb(spec(train, **FULL))).splitlines()
    assert lines[0].split()[:4] == ["RUNG", "STATUS", "SECONDS", "WHAT"]
    assert lines[-1] == "PASS: no rung that was run deviates"
    starts = {line.index(word) for line, word in zip(lines[1:3], ("one process, run", "one process, in"), strict=True)}
    assert len(starts) == 1
    assert all(not line.endswith(" ") for line in itertools.chain(lines))
