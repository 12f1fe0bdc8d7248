"""How a recording ends, which processes leave one, and the second way into a process."""

import json
import math
import os
import shutil
import textwrap
from pathlib import Path

import pytest

from capture_harness import Recorded, Snippets, run
from ddparity.capture import bootstrap_path
from ddparity.trace import RankStatus

TRAIN = """
import torch
from torch import nn
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def snippets(tmp_path_factory: pytest.TempPathFactory) -> Snippets:
    return Snippets(tmp_path_factory.mktemp("ends"), "shapes_ends")


def ended(snippets: Snippets, name: str, rank: int = 0) -> Recorded:
    return Recorded(snippets.out / name / f"rank-{rank:05d}")


# -- endings -----------------------------------------------------------------------------------------------------------


def test_an_exception_is_named_with_its_stack_and_no_locals(snippets: Snippets) -> None:
    facts = ended(snippets, "raises").facts
    assert (facts.status, facts.error_type) == (RankStatus.RAISED, "LookupError")
    assert facts.error_at[-1].endswith("in raises")
    assert "shapes_ends.py:" in facts.error_at[-1]
    assert "a local" not in (snippets.out / "raises" / "rank-00000" / "rank.json").read_text()
    assert "LookupError: nothing under 7" in snippets.log("raises")
    assert snippets.code("raises") == 1


@pytest.mark.parametrize("name", ["raises_before_training", "raises_with_another_hook", "exits_3_while_handling"])
def test_an_exception_that_comes_another_way(snippets: Snippets, name: str) -> None:
    facts = ended(snippets, name).facts
    expected = "FileNotFoundError" if name == "raises_before_training" else "LookupError"
    assert (facts.status, facts.error_type) == (RankStatus.RAISED, expected)
    assert facts.ended is not None


def test_exit_codes(snippets: Snippets) -> None:
    assert snippets.code("exits_3") == 3
    assert (ended(snippets, "exits_3").facts.status, ended(snippets, "exits_3").facts.error_type) == (
        RankStatus.RAISED,
        "SystemExit(3)",
    )
    assert snippets("exits_0").facts.status is RankStatus.FINISHED


@pytest.mark.parametrize(("name", "code"), [("leaves_at_once", 5), ("killed_in_mid_step", -9)])
def test_a_process_that_is_gone_leaves_what_was_flushed(snippets: Snippets, name: str, code: int) -> None:
    assert snippets.code(name) == code
    recorded = ended(snippets, name)
    assert recorded.facts.status is RankStatus.RUNNING
    assert recorded.facts.ended is None
    assert recorded.steps == [0]
    assert len(recorded.names("parameter_after")) == 4
    assert recorded.trace.truncated
    if name == "killed_in_mid_step":
        assert [e.step for e in recorded.events("backward")] == [0, 1]
        assert recorded.names("activation", 1) == ["body.0", "body.1", "head"]


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_process_that_trains_nothing_leaves_nothing(snippets: Snippets) -> None:
    assert not (snippets.out / "imports_only").exists()
    assert snippets.log("imports_only") == ""


def test_a_model_that_only_serves_has_its_samples_recorded(snippets: Snippets) -> None:
    recorded = snippets("forward_only")
    assert recorded.batches(training=False) == [(0, 0, "_Net", 4)]
    assert recorded.steps == []


def test_forked_loader_workers_leave_nothing(snippets: Snippets) -> None:
    recorded = snippets("loader_workers")
    assert snippets.folders("loader_workers") == ["rank-00000"]
    assert recorded.steps == [0, 1, 2, 3]
    assert recorded.trace.truncated == []
    assert [b[1:] for b in recorded.batches()] == [(0, "_Net", 4)] * 4


def test_forked_ranks_are_ranks(snippets: Snippets) -> None:
    assert snippets.folders("forked_ranks") == ["rank-00000", "rank-00001"]
    for rank in (0, 1):
        recorded = snippets("forked_ranks", rank)
        assert (recorded.facts.rank, recorded.facts.world_size) == (rank, 2)
        assert recorded.facts.status is RankStatus.FINISHED
        assert recorded.names("local_gradient", 1)


def test_forked_ranks_of_a_parent_that_tried_the_model(snippets: Snippets) -> None:
    name = "forked_ranks_of_a_parent_that_tried_the_model"
    folders = snippets.folders(name)
    assert [f for f in folders if len(f) == 10] == ["rank-00000", "rank-00001"]
    assert len(folders) == 3
    for rank in (0, 1):
        assert snippets(name, rank).facts.world_size == 2
        assert snippets(name, rank).steps == [0, 1]


def test_sharded_parameters_are_placed(snippets: Snippets) -> None:
    for rank in (0, 1):
        recorded = snippets("sharded_ranks", rank)
        for site in ("parameter", "synced_gradient", "parameter_after"):
            (found,) = recorded.digests(site, 0, "body.0.weight")
            assert (found.site.shape, found.site.global_shape) == ((4, 6), (8, 6))
            assert found.site.offsets == (4 * rank, 0)
        assert recorded.names("activation", 1) == ["body.0", "body.1", "head"]
        (local,) = recorded.digests("local_gradient", 0, "body.0.weight")
        assert (local.site.shape, local.site.global_shape) == ((8, 6), None)  # of the gathered parameter, unreduced
        assert recorded.events("clip")


def test_parameters_whose_memory_was_freed_are_not_read(snippets: Snippets) -> None:
    """What the model holds in their place is recorded, and did not change."""
    recorded = snippets("sharded_ranks_with_a_late_optimizer")
    assert recorded.steps == [0, 1]
    assert "body.0.weight: parameter_after: its memory has been freed" in recorded.not_recorded
    before = recorded.digests("parameter", 0, "body.0.weight")[0]
    for step in (0, 1):
        assert recorded.digests("synced_gradient", step, "body.0.weight")[0].site.global_shape == (8, 6)
        (after,) = recorded.digests("parameter_after", step, "body.0.weight")
        assert after.digest.hash == before.digest.hash


def test_flat_shards_are_taken_apart(snippets: Snippets) -> None:
    names = ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]
    ranks = [snippets("sharded_ranks_of_the_first_kind", rank) for rank in (0, 1)]
    for recorded in ranks:
        assert sorted(recorded.names("parameter")) == sorted(names)
        assert sorted(recorded.names("synced_gradient")) == sorted(recorded.names("parameter_after")) == sorted(names)
        assert recorded.names("activation", 1) == ["body.0", "body.1", "head"]
        assert recorded.steps == [0, 1]
        assert recorded.not_recorded == []
    for name in names:
        shards = [recorded.digests("parameter", 0, name)[0] for recorded in ranks]
        (shape,) = {shard.site.global_shape for shard in shards}
        assert sum(shard.digest.count for shard in shards) == math.prod(shape)


def test_a_forked_helper_is_not_recorded(snippets: Snippets) -> None:
    assert snippets.folders("forked_helper") == ["rank-00000"]
    recorded = snippets("forked_helper")
    assert recorded.steps == [0, 1]
    assert recorded.trace.truncated == []


def test_a_forked_rank_that_raises(snippets: Snippets) -> None:
    assert snippets.folders("forked_rank_raises") == ["rank-00000"]
    facts = ended(snippets, "forked_rank_raises").facts
    assert (facts.status, facts.error_type) == (RankStatus.RAISED, "LookupError")
    assert "parent saw it" in snippets.log("forked_rank_raises")


RANK = """
import sys
import torch
import torch.distributed as dist

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return torch.nn.Linear(1, 3)(torch.ones(1)).detach() + i

def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = torch.utils.data.DistributedSampler(Data())
    loader = torch.utils.data.DataLoader(Data(), 2, sampler=sampler, num_workers=2, multiprocessing_context="spawn")
    for step, x in enumerate(loader):
        model(x).sum().backward()
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 1:
        raise LookupError("nothing")
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_torchrun_with_spawned_workers_and_a_rank_that_fails(tmp_path: Path) -> None:
    """The agent, which fails too, and four spawned loader workers leave nothing; each rank says how it ended."""
    (tmp_path / "train.py").write_text(RANK)
    config = json.dumps({"trial_dir": str(tmp_path / "trial"), "steps": "2"})
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", tmp_path / "train.py"]
    done = run(*command, DDPARITY_CAPTURE=config)
    assert done.returncode != 0
    assert "ChildFailedError" in done.stderr
    assert "ddparity:" not in done.stderr
    assert sorted(path.name for path in (tmp_path / "trial").glob("rank-*")) == ["rank-00000", "rank-00001"]
    first, second = (Recorded(tmp_path / "trial" / f"rank-{rank:05d}") for rank in (0, 1))
    assert (second.facts.status, second.facts.error_type) == (RankStatus.RAISED, "LookupError")
    assert first.facts.status in (RankStatus.FINISHED, RankStatus.RUNNING)  # the agent may have ended it
    for recorded in (first, second):
        assert recorded.facts.partial == []
        assert recorded.steps == [0, 1]
        assert [b[1:] for b in recorded.batches()] == [(0, "Linear", 2)] * 2
        assert recorded.facts.backend in ("gloo", None)


# -- the second way in -------------------------------------------------------------------------------------------------


def recorded_with(tmp_path: Path, **environment: str) -> tuple[str, bool]:
    (tmp_path / "train.py").write_text(TRAIN)
    config = json.dumps({"trial_dir": str(tmp_path / "trial"), "steps": "2"})
    done = run(tmp_path / "train.py", DDPARITY_CAPTURE=config, **environment)
    assert done.returncode == 0, done.stderr
    trial = tmp_path / "trial"
    if not trial.exists():
        return done.stdout + done.stderr, False
    assert Recorded(trial / "rank-00000").steps == [0, 1]
    assert Recorded(trial / "rank-00000").facts.status is RankStatus.FINISHED
    return done.stdout + done.stderr, True


def test_without_autoload_nothing_is_recorded(tmp_path: Path) -> None:
    assert recorded_with(tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == ("", False)


def test_the_bootstrap_records_and_chains(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('the other one ran')\n")
    path = os.pathsep.join([str(bootstrap_path()), str(other)])
    said, recorded = recorded_with(tmp_path, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=path)
    assert said.splitlines() == ["the other one ran"]
    assert recorded


def test_both_ways_at_once_record_once(tmp_path: Path) -> None:
    assert recorded_with(tmp_path, PYTHONPATH=str(bootstrap_path())) == ("", True)


def test_the_bootstrap_finds_a_package_that_is_not_installed(tmp_path: Path) -> None:
    """In another environment the package stands beside the bootstrap and nowhere else."""
    package = tmp_path / "elsewhere" / "ddparity"
    shutil.copytree(bootstrap_path().parent.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "find.py").write_text(
        textwrap.dedent("""
        import importlib.util, sys
        sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f)]
        sys.path = [p for p in sys.path if not p.endswith("src")]
        print(importlib.util.find_spec("ddparity.capture").origin)
        """)
    )
    bootstrap = package / "capture" / "_bootstrap"
    done = run(tmp_path / "find.py", DDPARITY_CAPTURE="{}", PYTHONPATH=str(bootstrap))
    assert done.stdout.strip() == str(package / "capture" / "__init__.py")


def test_a_bad_configuration_keeps_nobody_from_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = run(tmp_path / "train.py", DDPARITY_CAPTURE='{"trial_dir": 3}')
    assert done.returncode == 0
    assert done.stderr.count("ddparity: not recording this process") == 1
