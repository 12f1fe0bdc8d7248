"""The merge plan: who holds which samples, and with which weight the ranks' local gradients add up."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from ddparity.digest import digest_of
from ddparity.judge._loss import loss_scale
from ddparity.judge._plan import joined, plan_reduction, plan_samples
from ddparity.judge._run import RankStep
from ddparity.trace import DigestRow, Event, EventRow, SampleRow, Site, SiteRow

FLOOR = 1e-6


def step_with(*batches, pieces=None, training=True) -> RankStep:
    """Return a rank's step with these batches of identities."""
    rows = []
    for number, ids in enumerate(batches):
        start, stop, total = pieces or (0, 0, 0)
        row = SampleRow(number, 0, number, "", training, start, stop, total, np.array(ids, dtype=np.uint64))
        rows.append(row)
    return RankStep(samples=rows)


def plan(control, *ranks):
    return plan_samples(step_with(control), {rank: step_with(*batches) for rank, batches in enumerate(ranks)})


def test_one_rank_with_the_same_samples():
    assert plan([1, 2, 3], [[1, 2, 3]]).placement == "Same"


def test_disjoint_shares_are_shards_in_any_order_and_any_micro_batches():
    found = plan([1, 2, 3, 4, 5, 6], [[6, 1], [2]], [[3], [5, 4]])
    assert (found.placement, found.groups, found.proved) == ("Shard", [[0], [1]], True)
    assert found.leaders == [0, 1]


def test_equal_shares_are_replicas():
    found = plan([1, 2], [[1, 2]], [[2, 1]], [[1], [2]])
    assert (found.placement, found.groups) == ("Replicate", [[0, 1, 2]])
    assert found.leaders == [0]


def test_groups_of_replicas_hold_shards():
    found = plan([1, 2, 3, 4], [[1, 2]], [[3, 4]], [[2, 1]], [[4, 3]])
    assert (found.placement, found.groups) == ("Shard x Replicate", [[0, 2], [1, 3]])
    assert found.leaders == [0, 1]


def test_shards_of_uneven_size():
    assert plan([1, 2, 3, 4, 5], [[1, 2, 3, 4]], [[5]]).placement == "Shard"


def test_a_sample_that_is_there_twice_has_to_be_there_twice():
    assert plan([1, 1, 2, 3], [[1, 2]], [[1, 3]]).placement == "Shard"
    assert not plan([1, 1, 2, 3], [[1, 2]], [[3]]).proved


def test_samples_that_are_all_alike_are_shards_by_their_number():
    found = plan([7] * 8, [[7] * 4], [[7] * 4])
    assert (found.placement, found.groups) == ("Shard", [[0], [1]])
    assert plan([7] * 4, [[7] * 4], [[7] * 4]).placement == "Replicate"


def test_foreign_ranks_hold_none_of_the_samples_while_the_others_hold_all():
    found = plan([1, 2, 3, 4], [[1, 2]], [[90, 91]], [[3, 4]], [[92, 93]])
    assert found.proved
    assert found.groups == [[0], [2]]
    assert found.foreign == [1, 3]


def test_overlap_is_not_merged_and_is_counted():
    found = plan([1, 2, 3, 4], [[1, 2]], [[2, 3]])
    assert (found.placement, found.proved) == ("Unproved", False)
    assert found.evidence["on_several_ranks"] == 1
    assert found.evidence["missing"] == 1
    assert found.reason.endswith("1 are on several ranks")


def test_other_samples_are_counted_by_rank():
    found = plan([1, 2, 3, 4], [[1, 2]], [[8, 9]])
    assert not found.proved
    assert (found.evidence["missing"], found.evidence["not_in_control"]) == (2, 2)
    assert found.evidence["in_common_by_rank"] == {"0": 2, "1": 0}


def test_nothing_in_common_says_so():
    found = plan([1, 2], [[3]], [[4]])
    assert found.reason == "no sample of the control's is among the candidate's"


def test_no_samples_at_all():
    found = plan_samples(RankStep(), {0: RankStep(), 1: RankStep()})
    assert not found.proved
    assert found.reason == "no sample entered a model as a tensor"


def test_batches_of_an_evaluation_do_not_count():
    control = step_with([1, 2])
    with_evaluation = step_with([1, 2])
    with_evaluation.samples += step_with([50, 51], training=False).samples
    assert plan_samples(control, {0: with_evaluation}).placement == "Same"


def test_slices_along_the_sequence_make_up_whole_samples():
    control = step_with([1, 2])
    halves = {0: step_with([1, 2], pieces=(0, 8, 16)), 1: step_with([1, 2], pieces=(8, 16, 16))}
    assert plan_samples(control, halves).placement == "Shard(sequence)"
    gap = {0: step_with([1, 2], pieces=(0, 8, 16)), 1: step_with([1, 2], pieces=(9, 16, 16))}
    assert not plan_samples(control, gap).proved


def test_joining_adds_up():
    assert joined([Counter({(1, 0, 0, 0): 1}), Counter({(1, 0, 0, 0): 2})]) == Counter({(1, 0, 0, 0): 3})


# -- with which weight local gradients add up ------------------------------------------------------------------------


def row(site, name, array, backward=0) -> DigestRow:
    digest = digest_of(np.asarray(array, dtype=np.float32))
    where = SiteRow(site, name, "", "", digest.dtype, digest.shape, None, None, "")
    return DigestRow(0, where, 0, -1, 0, backward, 0, 0, digest)


def rank_step(local, synced) -> RankStep:
    """Return a rank's step: name -> local gradients of its backward passes, name -> what the optimizer is given."""
    step = RankStep(complete=True)
    passes = max(len(arrays) for arrays in local.values())
    step.events[Event.BACKWARD] = [
        EventRow(0, 0, 0, Event.BACKWARD, "backward", 1.0, {"backward": number + 1}) for number in range(passes)
    ]
    for name, arrays in local.items():
        step.digests[Site.LOCAL_GRADIENT][name, ""] = [
            row(Site.LOCAL_GRADIENT, name, array, number + 1) for number, array in enumerate(arrays)
        ]
    for name, array in synced.items():
        step.digests[Site.SYNCED_GRADIENT][name, ""] = [row(Site.SYNCED_GRADIENT, name, array)]
    return step


def gradients(num_ranks, names=("a", "b", "c"), micro=1):
    rng = np.random.default_rng(num_ranks)
    return [
        {name: [rng.normal(size=(5, 7)).astype(np.float32) for _ in range(micro)] for name in names}
        for _ in range(num_ranks)
    ]


def total(local, name):
    return np.sum([np.sum(rank[name], axis=0) for rank in local], axis=0)


def reduced(local, weight, own=()):
    """Return the ranks' steps with gradients reduced by ``weight``, those in ``own`` left as they are."""
    steps = {}
    for number, rank in enumerate(local):
        synced = {name: np.sum(rank[name], axis=0) if name in own else weight * total(local, name) for name in rank}
        steps[number] = rank_step(rank, synced)
    return steps


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
@pytest.mark.parametrize("micro", [1, 3])
def test_mean_and_sum(num_ranks, micro):
    local = gradients(num_ranks, micro=micro)
    mean = plan_reduction(reduced(local, 1.0 / num_ranks), "DistributedDataParallel", FLOOR)
    assert (mean.observed, mean.proved) == ("mean", True)
    assert mean.weight == pytest.approx(1.0 / num_ranks, rel=1e-5)
    assert set(mean.by_name) == {"a", "b", "c"}
    summed = plan_reduction(reduced(local, 1.0), "", FLOOR)
    assert (summed.observed, summed.proved) == ("sum", True)
    assert summed.weight == pytest.approx(1.0, rel=1e-5)


def test_another_factor_is_a_number():
    assert plan_reduction(reduced(gradients(2), 0.25), "", FLOOR).observed == "0.25"


def test_the_factor_that_most_parameters_hold_is_the_plan():
    local = gradients(2, names=("a", "b", "c", "d"))
    found = plan_reduction(reduced(local, 0.5, own=("d",)), "DistributedDataParallel", FLOOR)
    assert (found.observed, found.proved, set(found.by_name)) == ("mean", True, {"a", "b", "c"})


def test_nothing_reduced():
    found = plan_reduction(reduced(gradients(2), 0.5, own=("a", "b", "c")), "", FLOOR)
    assert (found.observed, found.proved) == ("own", False)
    assert found.weight == 0.5


def test_gradients_that_follow_no_reduction_are_unproved():
    local = gradients(2)
    steps = reduced(local, 0.5)
    for step in steps.values():
        for name in ("a", "b", "c"):
            step.digests[Site.SYNCED_GRADIENT][name, ""] = [row(Site.SYNCED_GRADIENT, name, np.ones((5, 7)))]
    found = plan_reduction(steps, "", FLOOR)
    assert (found.observed, found.proved, found.weight) == ("unproved", False, 0.5)


def test_one_rank_needs_no_reduction():
    found = plan_reduction({0: rank_step(gradients(1)[0], {})}, "", FLOOR)
    assert (found.observed, found.weight, found.proved) == ("alone", 1.0, True)


def test_backward_passes_that_are_none_of_the_loss_do_not_count():
    local = gradients(2)
    steps = reduced(local, 0.5)
    for step in steps.values():  # a gradient that autograd.grad has asked for in between
        for name in ("a", "b", "c"):
            step.digests[Site.LOCAL_GRADIENT][name, ""].append(row(Site.LOCAL_GRADIENT, name, np.ones((5, 7)), 9))
    assert plan_reduction(steps, "", FLOOR).observed == "mean"


# -- losses ----------------------------------------------------------------------------------------------------------


def loss_context(control, by_rank, made_of=0.0):
    """Return a step with these losses, whose model's output times its gradient is of size ``made_of``."""

    def passes(values):
        return SimpleNamespace(passes=[SimpleNamespace(value=value, seq=0) for value in values], batches=values)

    row = SimpleNamespace(digest=SimpleNamespace(norm=made_of))
    one = SimpleNamespace(digest=SimpleNamespace(norm=1.0))
    alone = passes(control)
    alone.digests = {Site.ACTIVATION: {("out", ""): [one]}, Site.ACTIVATION_GRADIENT: {("out", ""): [row]}}
    ranks = {rank: passes(values) for rank, values in enumerate(by_rank)}
    samples = SimpleNamespace(foreign=[])
    return SimpleNamespace(control=alone, candidate=ranks, samples=samples, share=1 / len(by_rank), multiplicity=1)


@pytest.mark.parametrize(
    ("control", "by_rank", "made_of", "scale"),
    [
        ([2.0], [[1.5], [2.5]], 0.5, 2.0),  # an ordinary loss is its own scale
        ([1e-8], [[0.7], [-0.7]], 0.1, 0.7),  # ranks that cancel
        ([1.0, -1.0], [[0.0], [0.0]], 0.0, 2.0),  # micro-batches that cancel
        ([1e-8], [[1e-8], [1e-8]], 0.3, 0.3),  # samples that cancel
        ([0.0], [[0.0], [0.0]], 0.0, 1e-6),
    ],
)
def test_rounding_in_a_loss_is_relative_to_what_it_is_made_of(control, by_rank, made_of, scale):
    assert loss_scale(loss_context(control, by_rank, made_of)) == pytest.approx(scale)
