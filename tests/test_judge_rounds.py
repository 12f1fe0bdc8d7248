"""A step with several updates: a GAN's two optimizers, a closure that is evaluated again. And the samples they make."""

from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import torch

from ddparity.capture._batch import Batches
from ddparity.capture._offspring import Offspring
from ddparity.capture._outputs import _part_of_positions
from ddparity.digest import digest_of
from ddparity.judge import Finding, compare_trials
from ddparity.judge._context import Tally
from ddparity.judge._explain import _explain_factor
from ddparity.judge._update import _scaled_rate
from ddparity.trace import (
    FLAG_GRAD,
    FLAG_TRAINING,
    Event,
    RankFacts,
    RankStatus,
    RankWriter,
    Site,
    TrialFacts,
    TrialStatus,
)

IDS = np.arange(1, 9, dtype=np.uint64)
VALUES = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


class Pen:
    """Writes the rows of one rank's steps, in the order in which they come; most write one step."""

    def __init__(self, folder: Path, rank: int, world: int, *, copies: bool = False) -> None:
        facts = RankFacts(rank=rank, local_rank=rank, world_size=world, pid=1, hostname="synthetic")
        self.writer = RankWriter(folder / f"rank-{rank:05d}", facts)
        self.mine = slice(0, 8) if copies else slice(rank * 8 // world, (rank + 1) * 8 // world)
        self.rank = rank
        self.many = world > 1
        self.step = 0
        self.samples()

    def samples(self) -> None:
        self.writer.samples(step=self.step, batch=self.step, root="Net", training=True, ids=IDS[self.mine])

    def next_step(self) -> None:
        self.writer.event(Event.STEP, step=self.step)
        self.step += 1
        self.samples()

    def calls(self, name: str, *, occurrence: int = 0, factor: float = 1.0, shift: float = 0.0) -> None:
        rows = digest_of(VALUES[self.mine] * np.float32(factor) + np.float32(shift), row_keys=IDS[self.mine])
        where = {"module": "Linear", "batch": self.step, "rows": 1, "flags": FLAG_GRAD | FLAG_TRAINING}
        self.writer.digest(rows, site=Site.ACTIVATION, name=name, step=self.step, occurrence=occurrence, **where)

    def backward(self, number: int, *names: str, factor: float = 1.0) -> None:
        value = float(VALUES[self.mine].sum(dtype=np.float64)) * factor
        if self.many:
            value *= 2.0
        where = {"name": "backward", "value": value, "batch": self.step, "backward": number, "dtype": "float32"}
        self.writer.event(Event.BACKWARD, step=self.step, **where)
        for name in names:
            self.digest(Site.LOCAL_GRADIENT, name, self.local, backward=number)

    @property
    def local(self) -> np.ndarray:
        """The gradient of this rank's samples: their mean, whose average over the ranks is the whole's."""
        return VALUES[self.mine].mean(0)

    def reads(self, name: str, *, synced: bool = True) -> None:
        self.digest(Site.SYNCED_GRADIENT, name, VALUES.mean(0) if synced else self.local)

    def update(self, *names: str) -> None:
        self.writer.event(Event.OPTIMIZER, step=self.step, name="SGD", groups=[{"lr": 0.1}], params=[list(names)])

    def updated(self, name: str, *, factor: float = 1.0) -> None:
        self.digest(Site.PARAMETER_AFTER, name, VALUES[0] * np.float32(factor))

    def digest(self, site: Site, name: str, value: np.ndarray, **where: int) -> None:
        self.writer.digest(digest_of(value.astype(np.float32)), site=site, name=name, step=self.step, **where)

    def close(self) -> None:
        self.writer.event(Event.STEP, step=self.step)
        self.writer.facts.status = RankStatus.FINISHED
        self.writer.close()


def gan(pen: Pen, *, faulty: bool) -> None:
    """The critic's update, and then the generator's through the critic as it is now."""
    off = 1.001 if faulty else 1.0
    pen.calls("critic")
    pen.backward(1, "critic.weight")
    pen.reads("critic.weight", synced=not faulty)
    pen.update("critic.weight")
    pen.updated("critic.weight", factor=off)
    pen.calls("generator")
    pen.calls("critic", factor=off)
    pen.backward(2, "generator.weight", "critic.weight", factor=off)
    pen.reads("generator.weight")
    pen.update("generator.weight")
    pen.updated("generator.weight")


def closure(pen: Pen, *, faulty: bool) -> None:
    """An update that evaluates its closure twice: what it reads is the gradient of the first evaluation."""
    off = 1.001 if faulty else 1.0
    pen.update("critic.weight")
    pen.calls("critic")
    pen.backward(1, "critic.weight")
    pen.reads("critic.weight", synced=not faulty)
    pen.calls("critic", occurrence=1, factor=off)
    pen.backward(2, "critic.weight", factor=off)
    pen.updated("critic.weight", factor=off)


def row_parallel(pen: Pen, *, faulty: bool) -> None:
    """A layer split over its inputs: what it returns on a rank is an addend; a norm is given the sum of them."""
    weight = np.ones((4, 6), dtype=np.float32)
    if pen.many:
        mine = digest_of(weight[:, pen.rank * 3 :][:, :3], offsets=(0, pen.rank * 3), global_shape=(4, 6))
        where = {"offsets": (0, pen.rank * 3), "global_shape": (4, 6), "placement": "inferred Shard(1)"}
        pen.writer.digest(mine, site=Site.PARAMETER, name="down.weight", step=0, **where)
    else:
        pen.digest(Site.PARAMETER, "down.weight", weight)
    share = (0.25, 0.75)[pen.rank] if pen.many else 1.0
    pen.calls("down", factor=share)
    pen.calls("norm", factor=2.0 * share if faulty else 2.0)
    pen.update("down.weight")


def norm_after_bias(pen: Pen, *, faulty: bool) -> None:
    """Adam moves a bias whose gradient the norm behind it cancels: by rounding alone, and the running mean with it."""
    moved = np.full(4, 0.05 if pen.many else 0.0)
    pen.calls("norm")
    pen.backward(1, "conv.bias")
    pen.reads("conv.bias")
    pen.writer.event(Event.OPTIMIZER, step=0, name="AdamW", groups=[{"lr": 0.1}], params=[["conv.bias"]])
    pen.digest(Site.PARAMETER_AFTER, "conv.bias", VALUES[0] + moved)
    pen.digest(Site.BUFFER, "norm.running_mean", VALUES[1] + moved * (1.5 if faulty else 0.9))
    pen.digest(Site.BUFFER, "norm.running_var", VALUES[2])


def pool_after_bias(pen: Pen, *, faulty: bool) -> None:
    """The same, where a module passes on what the bias is off by, and the norm cancels it, or does not."""
    for _ in range(2):
        moved = 0.05 if pen.step and pen.many else 0.0
        pen.calls("conv", shift=moved)
        pen.calls("pool", shift=moved)
        pen.calls("norm", shift=moved if faulty else 0.0)
        pen.backward(1, "conv.bias")
        pen.reads("conv.bias")
        pen.writer.event(Event.OPTIMIZER, step=pen.step, name="AdamW", groups=[{"lr": 0.1}], params=[["conv.bias"]])
        pen.digest(Site.PARAMETER_AFTER, "conv.bias", VALUES[0] + (0.05 if pen.many else 0.0))
        if not pen.step:
            pen.next_step()


def shifted_elsewhere(pen: Pen, *, faulty: bool) -> None:
    """Nothing behind the bias may be off by more than the bias."""
    pen.calls("conv")
    pen.calls("pool")
    pen.backward(1, "conv.bias")
    pen.reads("conv.bias")
    pen.writer.event(Event.OPTIMIZER, step=0, name="AdamW", groups=[{"lr": 0.1}], params=[["conv.bias"]])
    pen.digest(Site.PARAMETER_AFTER, "conv.bias", VALUES[0] + (0.05 if pen.many else 0.0))
    pen.next_step()
    pen.calls("conv", shift=0.05 if pen.many else 0.0)
    pen.calls("pool", shift=0.25 if faulty else 0.0)
    pen.calls("norm")


def found(tmp_path: Path, write, *, faulty: bool) -> list[Finding]:
    for name, world in (("control", 1), ("candidate", 2)):
        folder = tmp_path / name
        folder.mkdir()
        facts = TrialFacts(id=name, name=name, command=["python"], cwd="/", control=world == 1)
        facts.status, facts.exit_code = TrialStatus.COMPLETED, 0
        (folder / "trial.json").write_bytes(msgspec.json.encode(facts))
        for rank in range(world):
            pen = Pen(folder, rank, world, copies=write is row_parallel)
            write(pen, faulty=faulty and world > 1)
            pen.close()
    return compare_trials(tmp_path / "control", tmp_path / "candidate").findings


@pytest.mark.parametrize("write", [gan, closure])
def test_what_an_update_reads_comes_before_what_follows_it(tmp_path: Path, write) -> None:
    first = next(iter(found(tmp_path, write, faulty=True)))
    assert (first.phase, first.name, first.ranks_differ) == ("backward", "critic.weight", True)
    assert first.cause.code in ("grad.none_synced", "grad.unsynced")


def test_addends_that_nothing_sums_are_named_where_they_are_made(tmp_path: Path) -> None:
    first, second, *_ = found(tmp_path, row_parallel, faulty=True)
    assert (first.phase, first.name, first.cause.code) == ("forward", "down", "forward.not_reduced")
    assert (second.name, second.follows) == ("norm", 0)


def test_a_running_mean_is_off_by_no_more_than_the_bias_in_front_of_it(tmp_path: Path) -> None:
    first, *_ = found(tmp_path, norm_after_bias, faulty=True)
    assert (first.phase, first.name, first.cause.code) == ("buffer", "norm.running_mean", "buffer.differs")


@pytest.mark.parametrize("write", [pool_after_bias, shifted_elsewhere])
def test_what_a_bias_is_off_by_has_to_be_cancelled_and_is_all_that_is_let_pass(tmp_path: Path, write) -> None:
    first, *_ = found(tmp_path, write, faulty=True)
    assert (first.step, first.phase, first.name) == (1, "forward", "pool")


@pytest.mark.parametrize("write", [gan, closure, row_parallel, norm_after_bias, pool_after_bias, shifted_elsewhere])
def test_a_healthy_step_of_several_updates_is_no_finding(tmp_path: Path, write) -> None:
    assert found(tmp_path, write, faulty=False) == []


@pytest.mark.parametrize(("before", "code"), [({2}, "grad.fixed_divisor"), ({1}, "grad.double_averaged")])
def test_a_step_with_fewer_micro_batches_tells_the_divisor_from_the_ranks(before: set[int], code: str) -> None:
    ctx = SimpleNamespace(num_ranks=2, micro_batches=1, tally=Tally(micro_batches=before))
    because, phase = _explain_factor(ctx, 0.5, False)  # type: ignore[arg-type]
    assert (because.code, phase) == (code, "backward")


def test_a_rate_times_the_number_of_ranks_is_told() -> None:
    ctx = SimpleNamespace(num_ranks=2)
    assert "times 2, the number of ranks" in _scaled_rate(ctx, 0.1, 0.2)  # type: ignore[arg-type]
    assert _scaled_rate(ctx, 0.1, 0.3) == ""  # type: ignore[arg-type]


def batches() -> Batches:
    return Batches(0, SimpleNamespace(find=lambda *_: None, keep=lambda *_: None))  # type: ignore[arg-type]


def test_generated_rows_are_known_by_what_they_were_made_from() -> None:
    noise, real = torch.randn(4, 2), torch.randn(4, 6)
    fake = torch.randn(4, 6)
    seen = []
    for made in (fake, fake * (1 + 1e-6), fake):  # the third deals other noise out
        one = batches()
        batch, _ = one.enter((noise if len(seen) < 2 else noise.flip(0),), {})
        assert batch is not None
        one.came_from(made, batch)
        both, new = one.enter((torch.cat([real, made]),), {})
        assert both is not None
        assert new
        seen.append(both.keys.ids)
    assert np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[0][:4], seen[2][:4])
    assert not np.isin(seen[0][4:], seen[0][:4]).any()
    assert np.array_equal(seen[0][4:], seen[2][4:][::-1])


def test_a_mixture_made_for_its_gradient_is_known_by_its_rows() -> None:
    noise, real, fake = torch.randn(4, 2), torch.randn(4, 6), torch.randn(4, 6)
    seen = []
    for rounding in (0.0, 1e-6):
        one = batches()
        batch, _ = one.enter((noise,), {})
        assert batch is not None
        one.came_from(fake, batch)
        one.enter((torch.cat([real, fake]),), {})
        mixed = (0.3 * real + 0.7 * fake * (1 + rounding)).requires_grad_()
        assert one.enter((mixed,), {}) == (batch, False)
        seen.append(batch.keys.token)
    assert seen[0] == seen[1]


def test_inputs_that_need_a_gradient_are_known_by_content_where_no_model_makes_them() -> None:
    one = batches()
    first, _ = one.enter((torch.randn(4, 2).requires_grad_(),), {})
    second, new = one.enter((torch.randn(4, 2).requires_grad_(),), {})
    assert new
    assert first is not second


def test_outputs_that_no_model_is_given_are_looked_at_no_more() -> None:
    offspring = Offspring()
    rows = torch.randn(3, 2)
    for _ in range(4):
        offspring.new_step()
    offspring.made(rows, np.arange(3, dtype=np.uint64))
    assert not offspring.wanted
    assert offspring.known(rows, [1]) is None


def test_positions_of_a_slice_are_a_part_of_all_positions() -> None:
    batch = SimpleNamespace(piece=(5, 10, 10))
    assert _part_of_positions((5, 16), (5,), batch) == {"offsets": (5, 0), "global_shape": (10, 16)}
    assert _part_of_positions((1, 5, 16), (1, 5), batch) == {"offsets": (0, 5, 0), "global_shape": (1, 10, 16)}
    assert _part_of_positions((4, 16), (4,), batch) == {}
    assert _part_of_positions((5, 16), (5,), SimpleNamespace(piece=None)) == {}
