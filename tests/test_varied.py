"""What varied between two trials: variables, the facts that follow from them, and the trials that tell them apart."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from ddparity.judge import Varied, Verdict
from ddparity.judge._command import Command, launcher_facts, split
from ddparity.judge._next_trials import plan_between
from ddparity.judge._varied import variables, varied_facts
from ddparity.report import render_html, render_plan, render_text
from ddparity.trace import GitFacts, RankFacts, RankTrace, Trial, TrialFacts


def trial(
    command: str, world: int = 1, *, name: str = "single", rank: dict[str, Any] | None = None, **facts: Any
) -> Trial:
    base: dict[str, Any] = {"backend": None if world == 1 else "gloo", "seeds": {"torch": 0}, "batch_shapes": {}}
    base |= {"versions": {"python": "3.11.7", "torch": "2.13.0"}, "settings": {"default_dtype": "float32"}}
    whole = TrialFacts(
        id=f"id-{name}", name=name, command=shlex.split(command), cwd="/", **{"script_sha256": "s", **facts}
    )
    one = RankFacts(rank=0, local_rank=0, world_size=world, pid=1, hostname="h", **(base | (rank or {})))
    return Trial(Path("/t"), whole, [RankTrace(Path("/t/rank-00000"), one)])


def names(control: Trial, candidate: Trial) -> list[str]:
    return [variable.name for variable in varied_facts(control, candidate)[1]]


ALONE = "python train.py --batch-size 32"
TWO = "torchrun --nproc-per-node 2 train.py --batch-size 16"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("python train.py --a 1 --b=2 -v x", {"--a": "1", "--b": "2", "-v": "x"}),
        ("python -u train.py in.txt --lr -0.5 --flag", {"argument 1": "in.txt", "--lr": "-0.5", "--flag": True}),
        ("python -m pkg.train --x 1 2 3 --x 4", {"--x": ["1 2 3", "4"]}),
        ("python train.py model=small +opt.lr=0.1", {"model=": "small", "opt.lr=": "0.1"}),
        ("torchrun --nproc-per-node 2 -m pkg.train a", {"argument 1": "a"}),
        ("python -m torch.distributed.run --standalone train.py --a", {"--a": True}),
        ("env A=1 B=2 python train.py -c 3", {"-c": "3"}),
        ("./train --a 1", {"--a": "1"}),
        ("", {}),
    ],
)
def test_a_command_comes_apart_and_together_again(command, arguments):
    taken = split(shlex.split(command))
    assert taken.arguments == arguments
    assert taken.words == shlex.split(command)


def test_an_argument_is_changed_added_and_left_out_in_its_place():
    one, two = split(shlex.split("python t.py --a 1 --b 2")), split(shlex.split("python t.py --a 3 --c"))
    for name, expected in (("--a", "--a 3 --b 2"), ("--b", "--a 1"), ("--c", "--a 1 --b 2 --c")):
        assert shlex.join(one.with_argument(name, two).words) == f"python t.py {expected}"
    assert one.with_value("--b", "5").words[-1] == "5"
    assert split(["python", "t.py", "--b=2"]).with_value("--b", "5").words[-1] == "--b=5"
    assert split(["python", "t.py", "2"]).with_value("argument 1", "5").words[-1] == "5"


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("torchrun --nproc-per-node 4 t.py", "torchrun --nproc-per-node 2 t.py"),
        ("torchrun --nproc_per_node=4 t.py", "torchrun --nproc_per_node=2 t.py"),
        ("mpirun -np 4 python t.py", "mpirun -np 2 python t.py"),
        ("python t.py", None),
    ],
)
def test_the_number_of_processes_is_changed_where_the_launcher_says_it(command, changed):
    made = split(shlex.split(command)).with_num_processes(2)
    assert (None if made is None else shlex.join(made.words)) == changed


@pytest.mark.parametrize(
    ("launcher", "facts"),
    [
        ("/opt/venv/bin/python3.11 -u", {"launcher": "python"}),
        ("torchrun --standalone --nproc-per-node 2", {"launcher": "torchrun"}),
        ("/x/python -m torch.distributed.run --nproc_per_node=2 --master-port 1", {"launcher": "torchrun"}),
        ("torchrun --nnodes 2 --max-restarts 3", {"launcher": "torchrun", "launcher:--max-restarts": "3"}),
        ("accelerate launch --num_processes 2", {"launcher": "accelerate launch"}),
    ],
)
def test_launchers_are_known_by_what_they_are(launcher, facts):
    assert launcher_facts(shlex.split(launcher)) == facts


def test_the_world_size_brings_launcher_backend_and_local_batch_along():
    two = trial(TWO, 2, name="ddp2", rank={"settings": {"default_dtype": "float32", "num_threads": 1}})
    varied, found = varied_facts(trial(ALONE), two)
    assert [variable.name for variable in found] == ["world_size"]
    assert Varied(variable="--batch-size", control="32", candidate="16", part_of="world_size") in varied
    assert {v.variable for v in varied} == {"world_size", "launcher", "--batch-size", "backend", "num_threads"}


def test_an_argument_that_is_the_number_of_processes_follows_it():
    assert names(trial("python t.py --tp 1 --b 8"), trial("torchrun --nproc-per-node 2 t.py --tp 2 --b 8", 2)) == [
        "world_size"
    ]


def test_arguments_are_told_apart_by_their_flags():
    assert names(trial(ALONE), trial("python train.py --batch-size 16")) == ["--batch-size"]
    assert names(trial(ALONE), trial(f"{ALONE} --bug x")) == ["--bug"]
    assert names(trial("python t.py --lr 0.1 --wd 0"), trial("python t.py --wd 0 --lr 0.2")) == ["--lr"]
    assert names(trial("python t.py --wd 0 --lr 0.1"), trial("python t.py --lr 0.1 --wd 0")) == []


def test_two_variables_are_two():
    assert names(trial(ALONE), trial(f"{TWO} --bug x", 2)) == ["--bug", "world_size"]
    assert names(
        trial("python t.py --lr 0.1 --steps 4"), trial("torchrun --nproc-per-node 2 t.py --lr 0.2 --steps 4", 2)
    ) == [
        "--lr",
        "world_size",
    ]


def test_micro_batches_are_one_variable_with_their_size():
    assert names(trial(f"{ALONE} --accum 1"), trial("python train.py --batch-size 8 --accum 4")) == ["micro_batches"]
    assert names(trial(ALONE), trial("python train.py --batch-size 8 --accum 4")) == ["micro_batches"]
    assert names(trial(ALONE), trial("python train.py --batch-size 16 --accum 4")) == ["micro_batches", "--batch-size"]


def test_the_launcher_alone_is_a_variable():
    one = trial("torchrun --nproc-per-node 1 train.py --batch-size 32", rank={"backend": "gloo"})
    assert names(trial(ALONE), one) == ["launcher"]


def test_changed_code_is_one_variable_under_any_path():
    edited = trial("python other/train.py --batch-size 32", script_sha256="t", git=GitFacts(commit="c2"))
    assert names(trial(ALONE, git=GitFacts(commit="c1")), edited) == ["code"]
    assert names(trial(ALONE), trial("python ./train.py --batch-size 32")) == []


def test_a_commit_that_left_the_fingerprints_alone_is_no_change_of_code():
    prints = {"train.py::main": "1"}
    sides = [trial(ALONE, git=GitFacts(commit=c), rank={"fingerprints": prints}) for c in ("c1", "c2")]
    assert names(*sides) == []
    other = trial(ALONE, git=GitFacts(commit="c2"), rank={"fingerprints": {"train.py::main": "2"}})
    assert names(sides[0], other) == ["code"]


def test_settings_follow_from_the_argument_that_may_have_set_them():
    settings = {"seeds": {"torch": 1}, "settings": {"default_dtype": "float64"}}
    _, found = varied_facts(trial(ALONE), trial(f"{ALONE} --seed 1 --dtype float64", rank=settings))
    assert {v.name: v.facts for v in found} == {
        "--seed": ["--seed", "seed"],
        "--dtype": ["--dtype", "setting:default_dtype"],
    }
    assert names(trial(ALONE), trial(ALONE, rank=settings)) == ["seed", "setting:default_dtype"]


def test_device_and_versions_are_variables():
    there = {"device": "cuda:0", "device_name": "Card", "backend": "nccl"}
    assert names(trial(ALONE), trial(ALONE, rank=there)) == ["device"]
    newer = {"versions": {"python": "3.11.7", "torch": "2.14.0", "ddparity": "9"}}
    assert names(trial(ALONE), trial(ALONE, rank=newer)) == ["version:torch"]


def test_environment_variables_are_variables_whether_exported_or_in_the_command():
    assert names(trial(ALONE), trial(f"env NVIDIA_TF32_OVERRIDE=1 {ALONE}")) == ["env:NVIDIA_TF32_OVERRIDE"]
    exported = trial(ALONE, env={"NVIDIA_TF32_OVERRIDE": "1", "MASTER_PORT": "7"})
    assert names(exported, trial(f"env NVIDIA_TF32_OVERRIDE=1 {ALONE}")) == []


def test_a_trial_that_recorded_nothing_varies_all_the_same():
    empty = trial(f"{ALONE} --bug x")
    empty.ranks = []
    assert "--bug" in names(trial(ALONE), empty)


def test_the_plan_changes_one_variable_a_trial():
    plan = plan_between(trial(ALONE), trial(f"{TWO} --bug x", 2, name="ddp2"))
    assert (plan.confounded, plan.variable) == (True, None)
    assert [(each.name, each.control, each.variable) for each in plan.trials] == [
        ("ddp2-1-bug", "single", "--bug"),
        ("ddp2", "ddp2-1-bug", "world_size"),
    ]
    assert plan.commands == [
        "ddparity record --control --name ddp2-1-bug -- python train.py --batch-size 32 --bug x",
        "ddparity compare single ddp2-1-bug",
        "ddparity compare ddp2-1-bug ddp2",
    ]


def test_the_plan_says_what_has_to_be_done_by_hand():
    newer = trial(
        f"env A=1 {ALONE} --lr 2", name="b", script_sha256="t", rank={"versions": {"python": "3.11.7", "torch": "3"}}
    )
    plan = plan_between(trial(ALONE), newer)
    assert [each.variable for each in plan.trials] == ["code", "--lr", "env:A", "version:torch"]
    assert plan.commands[0] == "# with the code of b"
    assert plan.trials[2].record.endswith("-- env A=1 python train.py --batch-size 32 --lr 2")
    assert plan.trials[-1].record == ""


def test_the_plan_of_one_variable_goes_by_the_number_of_processes():
    four = trial("torchrun --nproc-per-node 4 train.py --batch-size 8", 4, name="ddp4")
    plan = plan_between(trial(ALONE), four)
    assert plan.variable == "world_size"
    assert [each.record for each in plan.trials] == [
        "ddparity record --name ddp4-nproc1 -- torchrun --nproc-per-node 1 train.py --batch-size 32",
        "ddparity record --name ddp4-nproc2 -- torchrun --nproc-per-node 2 train.py --batch-size 16",
    ]
    assert plan_between(trial(ALONE), trial(ALONE)).trials == []


def test_the_plan_in_words():
    text = render_plan(plan_between(trial(ALONE), trial(f"{TWO} --bug x", 2, name="ddp2")))
    assert text.startswith(
        "from single to ddp2: CONFOUNDED, 2 variables changed\n  --bug\n    --bug: none -> x\n  world_size\n"
    )
    assert "  2. world_size\n     ddparity compare ddp2-1-bug ddp2\n" in text
    text = render_plan(plan_between(trial(ALONE), trial(TWO, 2, name="ddp2")))
    assert "one variable changed" in text
    text = render_plan(plan_between(trial(ALONE), trial(ALONE, name="again")))
    assert text == "from single to again: nothing that was recorded changed\n\nnext: ddparity compare single again\n"


def test_reports_name_the_variable_or_the_trials_in_between():
    base: dict[str, Any] = {"control": "c", "candidate": "d", "partial": False, "layers": {}}
    varied = [Varied(variable="--lr", control=1, candidate=2, part_of="--lr")]
    one = Verdict(**base, varied=varied, variable="--lr", variables=["--lr"], notes=["<stale>"])
    assert "\n  one variable: --lr\n" in render_text(one)
    assert "note: <stale>\n" in render_text(one)
    assert "One variable: --lr" in render_html(one)
    assert "<p>&lt;stale&gt;</p>" in render_html(one)
    two = Verdict(**base, varied=varied, confounded=True, variables=["--lr", "a"], next_trials=["ddparity compare c d"])
    assert "CONFOUNDED: more than one variable changed (--lr, a), so" in render_text(two)
    assert "\n    ddparity compare c d\n" in render_text(two)
    assert "<code>ddparity compare c d</code>" in render_html(two)


def test_order_is_stable_and_every_fact_belongs_to_one_variable():
    ours = {"world_size": 1, "--a": "1", "--b": "1", "seed": 0, "script": "s"}
    theirs = {"world_size": 2, "--a": "2", "--b": "3", "seed": 1, "script": "t", "launcher": "torchrun"}
    found = variables(ours, theirs)
    assert [v.name for v in found] == ["code", "--b", "world_size"]
    facts = [fact for v in found for fact in v.facts]
    assert sorted(facts) == sorted({*ours, *theirs})
    assert isinstance(split(["python"]), Command)


def told(values: dict[str, Any]) -> dict[str, Any]:
    return {"hyperparameters": values}


@pytest.mark.parametrize(
    ("ours", "theirs", "command", "expected"),
    [
        # what the world size divides, told by a framework
        (
            {"batch_size": 8, "lr": 0.1},
            {"batch_size": 4, "lr": 0.1},
            "torchrun --nproc-per-node 2 t.py",
            ["world_size"],
        ),
        # the same number of samples in micro-batches
        ({"batch_size": 8, "accum": 1}, {"batch_size": 4, "accum": 2}, "python t.py", ["micro_batches"]),
        # an argument explains what it brings along
        ({"max_steps": 6}, {"max_steps": 9}, "python t.py --max-steps 9", ["--max-steps"]),
        # a setting that nothing on the command line explains is a variable of its own
        ({"lr": 0.1}, {"lr": 0.2}, "python t.py", ["hyperparameter:lr"]),
        ({"lr": 0.1}, {"lr": 0.2}, "torchrun --nproc-per-node 2 t.py", ["hyperparameter:lr", "world_size"]),
        # the number of processes under a name of its own
        ({}, {}, "torchrun --nproc-per-node 2 t.py --devices 2", ["world_size"]),
        ({}, {}, "torchrun --nproc-per-node 2 t.py --accumulate 2", ["micro_batches", "world_size"]),
    ],
)
def test_settings_that_a_callback_told_belong_to_what_was_changed(ours, theirs, command, expected):
    world = 2 if "torchrun" in command else 1
    control = trial("python t.py", rank=told(ours))
    candidate = trial(command, world, name="two", rank=told(theirs))
    assert sorted(names(control, candidate)) == sorted(expected)


def test_the_batch_that_a_run_never_came_to_has_not_changed():
    shaped = {"batch_shapes": {"": [32, 8]}}
    control, died = trial(ALONE, rank=shaped), trial(ALONE, name="died")
    assert varied_facts(control, died) == ([], [])
    other = trial(ALONE, name="other", rank={"batch_shapes": {"": [16, 8]}})
    assert [each.variable for each in varied_facts(control, other)[0]] == ["batch_shape"]
