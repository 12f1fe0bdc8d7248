"""The laws of digests: torch agrees with the definition in numpy, parts add up, relations are found."""

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddparity.digest import (
    Digest,
    RowKeys,
    digest_of,
    digest_tensor,
    distance,
    merge_mean,
    merge_replicas,
    merge_shards,
    merge_sum,
    merge_weighted,
    relate,
    relative_error,
    row_hashes,
    same,
    scaled,
)
from ddparity.digest._cache import Bounded

LAW = settings(max_examples=60, deadline=None, derandomize=True, database=None)

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]
MORE_INTS = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = FLOATS + INTS + COMPLEX

SHAPES = [(), (0,), (1,), (7,), (128,), (129,), (1, 1, 1), (3, 0, 2), (5, 1, 4), (64, 3), (10, 33), (2, 3, 4, 5)]
LARGE = [(96, 128), (9000,), (70_001,), (300, 37), (3, 1, 65, 50), (33, 2048)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors on a busy machine: threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def values_of(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return random values, spread over several orders of magnitude where the dtype has them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if not (dtype.is_floating_point or dtype.is_complex):
        info = torch.iinfo(dtype)
        low, high = max(info.min, -(2**62)), min(info.max, 2**62)
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(dtype)
    if dtype.is_complex:
        parts = [values_of(shape, torch.float64, seed + i) for i in range(2)]
        return torch.complex(*parts).to(dtype)
    scale = torch.exp(torch.randn(shape, generator=generator, dtype=torch.float64))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as numpy sees it; bfloat16, which numpy lacks, as float32."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).cpu().numpy()


def assert_agree(torch_side: Digest, reference: Digest, *, with_hash: bool = True) -> None:
    """Every number agrees to rounding, the hash exactly."""
    assert torch_side.shape == reference.shape
    assert torch_side.count == reference.count
    assert (torch_side.num_nan, torch_side.num_inf) == (reference.num_nan, reference.num_inf)
    scale = reference.sum_abs if math.isfinite(reference.sum_abs) else 1.0
    assert torch_side.sum == pytest.approx(reference.sum, abs=1e-6 * scale + 1e-300)
    assert torch_side.sum_abs == pytest.approx(reference.sum_abs, rel=1e-5)
    assert torch_side.sum_sq == pytest.approx(reference.sum_sq, rel=1e-5)
    assert torch_side.minimum == pytest.approx(reference.minimum, rel=1e-6)
    assert torch_side.maximum == pytest.approx(reference.maximum, rel=1e-6)
    assert np.linalg.norm(torch_side.sketch - reference.sketch) <= 1e-6 * np.linalg.norm(reference.sketch)
    if with_hash:
        assert torch_side.hash == reference.hash


@pytest.mark.parametrize("dtype", DTYPES + MORE_INTS, ids=str)
@pytest.mark.parametrize("shape", SHAPES + LARGE[:3], ids=str)
def test_torch_agrees_with_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = values_of(shape, dtype, seed=len(shape))
    mine = digest_tensor(tensor, with_hash=True)
    assert mine.dtype == str(dtype).removeprefix("torch.")
    assert_agree(mine, digest_of(array_of(tensor)), with_hash=dtype != torch.bfloat16)


@pytest.mark.parametrize("shape", LARGE, ids=str)
def test_large_tensors_agree_with_the_reference(shape: tuple[int, ...]) -> None:
    tensor = values_of(shape, torch.float32, seed=3)
    assert_agree(digest_tensor(tensor, with_hash=True), digest_of(array_of(tensor)))


@pytest.mark.parametrize("shape", [(40,), (100, 130)], ids=str)
def test_the_hash_of_bfloat16_is_that_of_its_bits(shape: tuple[int, ...]) -> None:
    tensor = values_of(shape, torch.bfloat16, seed=1)
    assert digest_tensor(tensor, with_hash=True).hash == digest_of(tensor.view(torch.int16).numpy()).hash


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("num", [50, 10_000])
def test_eight_bit_floats_are_digested(num: int, dtype: torch.dtype) -> None:
    tensor = values_of((num,), torch.float32, seed=1).clamp(-400, 400).to(dtype)
    mine = digest_tensor(tensor, with_hash=True)
    assert_agree(mine, digest_of(tensor.float().numpy()), with_hash=False)
    assert mine.hash == digest_of(tensor.view(torch.int8).numpy()).hash


def views(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return non-contiguous tensors made of a matrix."""
    return [
        tensor.t(),
        tensor[::2, 1:],
        tensor[:, ::3],
        tensor[:1].expand(7, tensor.shape[1]),
        tensor.unfold(0, 2, 1),
        tensor.flatten()[5:][:30].view(5, 6).t(),
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(6, 9), (130, 140)], ids=str)
def test_non_contiguous_tensors_are_read_in_their_logical_order(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for view in views(values_of(shape, dtype, seed=5)):
        mine = digest_tensor(view, with_hash=True)
        assert_agree(mine, digest_of(array_of(view)), with_hash=dtype != torch.bfloat16)
        assert same(mine, digest_tensor(view.clone(memory_format=torch.contiguous_format), with_hash=True))


def test_conjugate_and_negative_views_are_resolved() -> None:
    tensor = values_of((9, 5), torch.complex64, seed=2)
    for view in (tensor.conj(), tensor.conj().imag, tensor.conj().t()):
        assert_agree(digest_tensor(view, with_hash=True), digest_of(array_of(view)))


@pytest.mark.parametrize("num", [20, 20_000])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinities_are_counted_and_left_out(dtype: torch.dtype, num: int) -> None:
    tensor = values_of((num,), dtype, seed=7)
    clean = tensor.clone()
    tensor[3], tensor[5], tensor[6] = math.nan, math.inf, -math.inf
    clean[[3, 5, 6]] = 0.0
    mine, reference = digest_tensor(tensor), digest_tensor(clean)
    assert (mine.num_nan, mine.num_inf, mine.finite) == (1, 2, False)
    assert_agree(mine, digest_of(array_of(tensor)), with_hash=False)
    assert np.allclose(mine.sketch, reference.sketch, rtol=1e-5, atol=1e-5)
    assert not same(mine, reference)


@pytest.mark.parametrize("num", [20, 20_000])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 1e30), (torch.float32, 1e-30), (torch.float64, 1e160)])
def test_extreme_magnitudes_neither_overflow_nor_vanish(dtype: torch.dtype, scale: float, num: int) -> None:
    a = (values_of((num,), torch.float64, seed=7) * scale).to(dtype)
    b = a.clone()
    b[4:40] *= 1.5
    mine, other = digest_tensor(a), digest_tensor(b)
    true = float((a.double() / scale - b.double() / scale).norm() / (a.double() / scale).norm())
    assert relative_error(other, mine) == pytest.approx(true, rel=0.3)
    assert relate(digest_tensor(a * 2), mine).factor == pytest.approx(2.0)


def test_what_overflows_even_float64_is_no_agreement() -> None:
    a = torch.full((300,), 1.7e308, dtype=torch.float64)
    assert distance(digest_tensor(a), digest_tensor(-a)) == math.inf
    assert distance(digest_tensor(a), digest_tensor(a.clone())) == 0.0


# -- shards -----------------------------------------------------------------------------------------------------------


@st.composite
def sharded(draw: st.DrawFn) -> tuple[torch.Tensor, list[tuple[torch.Tensor, tuple[int, ...]]]]:
    """Draw a tensor and a cut of it along one dimension, with uneven and empty parts."""
    ndim = draw(st.integers(1, 3))
    big = draw(st.booleans())
    shape = tuple(draw(st.integers(1, 40 if big and ndim == 2 else 9)) for _ in range(ndim))
    if big:
        shape = (*shape[:-1], shape[-1] * 50)
    dim = draw(st.integers(0, ndim - 1))
    cuts = sorted(draw(st.lists(st.integers(0, shape[dim]), max_size=4)))
    tensor = values_of(shape, draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99)))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, shape[dim]], strict=True):
        offsets = tuple(start if d == dim else 0 for d in range(ndim))
        parts.append((tensor.narrow(dim, start, stop - start), offsets))
    return tensor, parts


@LAW
@given(sharded(), st.randoms())
def test_shards_add_up_to_the_whole(case: tuple, random: object) -> None:
    tensor, parts = case
    whole = digest_tensor(tensor, with_hash=True)
    digests = [digest_tensor(p, offsets=o, global_shape=tuple(tensor.shape), with_hash=True) for p, o in parts]
    random.shuffle(digests)
    merged = merge_shards(digests, tuple(tensor.shape))
    assert merged.hash == whole.hash
    assert_agree(merged, whole)
    if tensor.dtype != torch.bfloat16:
        arrays = [digest_of(array_of(p), offsets=o, global_shape=tuple(tensor.shape)) for p, o in parts]
        assert_agree(merge_shards(arrays, tuple(tensor.shape)), whole)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 4)])
def test_shards_in_two_dimensions_add_up(rows: int, columns: int) -> None:
    tensor = values_of((130, 390), torch.float32, seed=1)
    parts, start = [], 0
    for block in tensor.chunk(rows, 0):
        left = 0
        for part in block.chunk(columns, 1):
            parts.append(digest_tensor(part, offsets=(start, left), global_shape=(130, 390), with_hash=True))
            left += part.shape[1]
        start += block.shape[0]
    assert_agree(merge_shards(parts, (130, 390)), digest_tensor(tensor, with_hash=True))


def test_large_shards_with_unaligned_offsets_add_up() -> None:
    tensor = values_of((701, 333), torch.float32, seed=1)
    parts = [
        digest_tensor(tensor[a:b], offsets=(a, 0), global_shape=(701, 333), with_hash=True)
        for a, b in [(0, 77), (77, 77), (77, 400), (400, 701)]
    ]
    assert_agree(merge_shards(parts, (701, 333)), digest_tensor(tensor, with_hash=True))


@LAW
@given(st.sampled_from([(7, 5), (40, 50), (3, 4, 900)]), st.lists(st.floats(0, 1), max_size=4), st.integers(0, 99))
def test_ranges_of_the_flattened_tensor_add_up(shape: tuple[int, ...], cuts: list[float], seed: int) -> None:
    tensor = values_of(shape, torch.float32, seed)
    at = [0, *sorted(int(cut * tensor.numel()) for cut in cuts), tensor.numel()]
    flat = tensor.reshape(-1)
    parts = [
        digest_tensor(flat[a:b], offsets=(a,), global_shape=shape, with_hash=True) for a, b in itertools.pairwise(at)
    ]
    assert_agree(merge_shards(parts, shape), digest_tensor(tensor, with_hash=True))
    arrays = [digest_of(flat[a:b].numpy(), offsets=(a,), global_shape=shape) for a, b in itertools.pairwise(at)]
    assert_agree(merge_shards(arrays, shape), digest_tensor(tensor, with_hash=True))


def test_a_shard_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot stand at"):
        digest_tensor(torch.ones(3, 3), offsets=(0,), global_shape=(3, 3))
    with pytest.raises(ValueError, match="row_keys or offsets"):
        digest_tensor(torch.ones(2, 3), offsets=(0, 0), global_shape=(4, 3), row_keys=keyed(2))


# -- replicas and partial sums ----------------------------------------------------------------------------------------


def test_replicas_are_told_apart_bit_by_bit() -> None:
    tensor = values_of((50, 40), torch.float32, seed=1)
    other = tensor.clone()
    other[7, 3] = torch.nextafter(other[7, 3], torch.tensor(math.inf))
    parts = [digest_tensor(t, with_hash=True) for t in (tensor, tensor.clone(), other)]
    assert merge_replicas(parts[:2]) == (parts[0], True)
    assert merge_replicas(parts) == (parts[0], False)
    assert not same(parts[0], digest_tensor(tensor.view(40, 50), with_hash=True))


@LAW
@given(st.integers(1, 5), st.sampled_from([(), (3,), (40, 50), (150, 128)]), st.integers(0, 99))
def test_partial_sums_and_means_merge_to_the_sum_and_the_mean(num: int, shape: tuple[int, ...], seed: int) -> None:
    tensors = [values_of(shape, torch.float64, seed + i) for i in range(num)]
    parts = [digest_tensor(t) for t in tensors]
    total = digest_tensor(torch.stack(tensors).sum(0))
    mean = digest_tensor(torch.stack(tensors).mean(0))
    scale = 1e-12 * sum(p.norm for p in parts)
    for merged, reference in ((merge_sum(parts), total), (merge_mean(parts), mean)):
        assert distance(merged, reference) <= scale
        assert merged.sum == pytest.approx(reference.sum, abs=1e-9 * (1 + reference.sum_abs))
    weights = [0.5 + i for i in range(num)]
    weighted = digest_tensor(sum(w * t for w, t in zip(weights, tensors, strict=True)))
    assert distance(merge_weighted(parts, weights), weighted) <= 10 * scale


def test_a_merge_says_what_it_cannot_know() -> None:
    a, b = digest_tensor(torch.ones(5), with_hash=True), digest_tensor(-torch.ones(5), with_hash=True)
    merged = merge_sum([a, b])
    assert merged.hash is None
    assert all(math.isnan(v) for v in (merged.sum_abs, merged.sum_sq, merged.minimum, merged.maximum))
    assert merged.norm == 0.0
    assert merge_sum([a]) == a


@pytest.mark.parametrize("merge", [merge_sum, merge_mean, merge_shards, merge_replicas])
def test_nothing_cannot_be_merged(merge: object) -> None:
    with pytest.raises(ValueError, match="empty list"):
        merge([])


@lru_cache
def some_digest(seed: int) -> Digest:
    return digest_tensor(values_of((200, 60), torch.float32, seed), with_hash=True)


@LAW
@given(st.lists(st.integers(0, 20), min_size=3, max_size=6, unique=True), st.randoms())
def test_merging_is_commutative_and_associative(seeds: list[int], random: object) -> None:
    parts = [some_digest(seed) for seed in seeds]
    shuffled = list(parts)
    random.shuffle(shuffled)
    cut = random.randint(1, len(parts) - 1)
    tolerance = 1e-12 * sum(p.norm for p in parts)
    for merge in (merge_sum, merge_shards):
        reference = merge(parts)
        for other in (merge(shuffled), merge([merge(parts[:cut]), merge(parts[cut:])])):
            assert distance(reference, other) <= tolerance
            assert other.sum == pytest.approx(reference.sum, abs=1e-9)
            assert other.hash == reference.hash


@LAW
@given(st.floats(-100, 100), st.sampled_from([(4,), (90, 100)]))
def test_a_scaled_digest_is_the_digest_of_the_scaled_tensor(factor: float, shape: tuple[int, ...]) -> None:
    tensor = values_of(shape, torch.float64, seed=1)
    mine, reference = scaled(digest_tensor(tensor, with_hash=True), factor), digest_tensor(tensor * factor)
    assert np.allclose(mine.sketch, reference.sketch)
    assert mine.hash is None or factor == 1.0
    for name in ("sum", "sum_abs", "sum_sq", "minimum", "maximum"):
        assert getattr(mine, name) == pytest.approx(getattr(reference, name), rel=1e-12, abs=1e-9)


# -- relations --------------------------------------------------------------------------------------------------------


@LAW
@given(st.sampled_from([2.0, 0.5, 4.0, -1.0, 0.125, 3.7]), st.sampled_from([(2,), (300,), (64, 200), (200, 64)]))
def test_relate_finds_the_factor(factor: float, shape: tuple[int, ...]) -> None:
    b = values_of(shape, torch.float32, seed=11)
    relation = relate(digest_tensor(b * factor), digest_tensor(b))
    assert relation.factor == pytest.approx(factor, rel=1e-5)
    assert relation.residual < 1e-5


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_relate_measures_what_is_left(share: float) -> None:
    b, rest = values_of((200, 300), torch.float64, seed=1), values_of((200, 300), torch.float64, seed=2)
    rest *= share * b.norm() / rest.norm()
    relation = relate(digest_tensor(2 * b + 2 * rest), digest_tensor(b))
    assert relation.residual == pytest.approx(share / math.hypot(1, share), rel=0.3)
    assert relation.factor == pytest.approx(2.0, rel=share)


def test_zero_relates_to_nothing() -> None:
    zero, one = digest_tensor(torch.zeros(9)), digest_tensor(torch.ones(9))
    assert (relate(zero, zero).factor, relate(zero, zero).residual) == (0.0, 0.0)
    assert relate(zero, one).residual == 1.0
    assert math.isnan(relate(one, zero).factor)
    assert relate(one, zero).residual == 1.0
    assert relative_error(one, zero) == math.inf
    assert relative_error(one, zero, scale=30.0) == pytest.approx(0.1)
    assert relative_error(zero, zero) == 0.0


# -- samples ----------------------------------------------------------------------------------------------------------


def keyed(num: int, seed: int = 1) -> RowKeys:
    return RowKeys.of(np.random.default_rng(seed).integers(0, 2**64, num, dtype=np.uint64))


@LAW
@given(
    st.sampled_from([(6, 5), (6, 128), (6, 3, 50), (12, 1000), (24, 16, 64), (6,), (6, 0)]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.complex64]),
    st.randoms(),
)
def test_rank_micro_batch_and_order_of_samples_do_not_matter(shape: tuple, dtype: torch.dtype, random: object) -> None:
    tensor, keys = values_of(shape, dtype, seed=4), keyed(6)
    whole = digest_tensor(tensor, row_keys=keys, with_hash=True)
    order = list(range(6))
    random.shuffle(order)
    rows = tensor.view(6, -1).clone()
    parts, done = [], 0
    while done < 6:  # ranks and micro-batches of uneven size
        size = random.randint(1, 6 - done)
        some = order[done : done + size]
        part = rows[some].view(size * shape[0] // 6, *shape[1:])
        parts.append(digest_tensor(part, row_keys=RowKeys.of(keys.ids[some]), with_hash=True))
        done += size
    assert_agree(merge_shards(parts, shape), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex128, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(6, 5), (12, 3), (6, 20_000), (12, 40, 40), (0, 3), (6,)], ids=str)
def test_samples_agree_with_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor, keys = values_of(shape, dtype, seed=4), keyed(6 if shape[0] else 0)
    mine = digest_tensor(tensor, row_keys=keys, with_hash=True)
    assert_agree(mine, digest_of(array_of(tensor), row_keys=keys.ids))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize(("length", "width"), [(7, 5), (50, 64), (33, 300)])
def test_slices_along_the_sequence_add_up(length: int, width: int, dtype: torch.dtype) -> None:
    tensor, keys = values_of((6, length, width), dtype, seed=4), keyed(6)
    whole = digest_tensor(tensor, row_keys=keys, with_hash=True)
    cuts = [0, 1, length // 2, length // 2, length]
    parts = [
        digest_tensor(tensor[:, a:b], row_keys=keys, row_start=a * width, with_hash=True)
        for a, b in itertools.pairwise(cuts)
    ]
    assert_agree(merge_shards(parts, tuple(tensor.shape)), whole)


def test_another_sample_at_the_same_place_is_another_tensor() -> None:
    tensor = values_of((6, 500), torch.float32, seed=4)
    a, b = (digest_tensor(tensor, row_keys=keyed(6, seed), with_hash=True) for seed in (1, 2))
    assert a.hash != b.hash
    assert relative_error(a, b) > 1.0


def test_identities_that_do_not_divide_the_rows_are_refused() -> None:
    for count in (0, 4):
        with pytest.raises(ValueError, match=f"{count} sample identities"):
            digest_tensor(torch.ones(6, 2), row_keys=keyed(count))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inner", [(), (1,), (7,), (3, 20)], ids=str)
def test_identities_come_from_content_alone(inner: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = values_of((6, *inner), dtype, seed=4)
    ids = row_hashes(tensor)
    assert ids.shape == (6,)
    assert ids.dtype == np.uint64
    assert list(row_hashes(tensor.flip(0))) == list(ids[::-1])
    if dtype != torch.bool or inner == (3, 20):
        assert len(set(ids.tolist())) == len({tuple(row) for row in tensor.view(6, -1).tolist()})


def test_identities_of_empty_batches_and_rows() -> None:
    assert row_hashes(torch.ones(0, 3)).shape == (0,)
    assert len(set(row_hashes(torch.ones(3, 0)).tolist())) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool, torch.int64], ids=str)
def test_identities_of_black_and_white_images_do_not_collide(dtype: torch.dtype) -> None:
    images = (torch.rand(40_000, 30, generator=torch.Generator().manual_seed(0)) < 0.5).to(dtype)
    assert len(set(row_hashes(images).tolist())) == len(torch.unique(images, dim=0))


# -- the exact hash ---------------------------------------------------------------------------------------------------


@LAW
@given(st.sampled_from(DTYPES), st.sampled_from([(3,), (50,), (100, 90)]), st.integers(0, 999), st.data())
def test_any_change_of_one_element_changes_the_hash(
    dtype: torch.dtype, shape: tuple, seed: int, data: st.DataObject
) -> None:
    tensor = values_of(shape, dtype, seed)
    size = min(tensor.element_size(), 8)
    changed = tensor.clone()
    raw = (torch.view_as_real(changed) if dtype.is_complex else changed).view(-1)
    raw = raw.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[raw.element_size()])
    where = data.draw(st.integers(0, raw.numel() - 1))
    if dtype == torch.bool:
        raw[where] ^= 1
    else:
        bit = data.draw(st.integers(0, 8 * min(size, raw.element_size()) - 1))
        raw[where] ^= torch.tensor(1 << bit if bit < 63 else -(1 << 63)).to(raw.dtype)
    assert digest_tensor(tensor, with_hash=True).hash != digest_tensor(changed, with_hash=True).hash


PAIRED = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", [*PAIRED, torch.int32, torch.int64, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(64,), (100, 90)], ids=str)
def test_swaps_and_pairs_of_sign_flips_change_the_hash(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = values_of(shape, dtype, seed=9)
    before = digest_tensor(tensor, with_hash=True).hash
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        i, j = torch.randperm(tensor.numel(), generator=generator)[:2].tolist()
        swapped, flipped, opposite = tensor.clone().view(-1), tensor.clone().view(-1), tensor.clone().view(-1)
        swapped[[i, j]] = swapped[[j, i]]
        flipped[[i, j]] = -flipped[[i, j]]
        opposite[i] = -opposite[j]
        turned = opposite.clone()
        turned[[i, j]] = turned[[j, i]]  # x and -x change places
        if tensor.view(-1)[i] != tensor.view(-1)[j]:
            assert digest_tensor(swapped.view(shape), with_hash=True).hash != before
        assert digest_tensor(flipped.view(shape), with_hash=True).hash != before
        hashes = [digest_tensor(t.view(shape), with_hash=True).hash for t in (opposite, turned)]
        assert hashes[0] != hashes[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_permutations_of_zeros_and_ones_do_not_collide(dtype: torch.dtype) -> None:
    rows = [torch.randperm(40, generator=torch.Generator().manual_seed(i)) < 20 for i in range(3000)]
    hashes = {digest_tensor(row.to(dtype), with_hash=True).hash for row in rows}
    assert len(hashes) == len({tuple(row.tolist()) for row in rows})


# -- tables -----------------------------------------------------------------------------------------------------------


def test_the_cache_of_tables_is_bounded() -> None:
    cache: Bounded[str] = Bounded(100)
    made: list[int] = []

    def make(key: int, size: int) -> str:
        return cache.get(key, lambda: (made.append(key) or f"table {key}", size))

    assert [make(1, 40), make(2, 40), make(1, 40)] == ["table 1", "table 2", "table 1"]
    make(3, 40)  # the second was used longest ago
    assert (make(1, 40), cache.num_bytes, made) == ("table 1", 80, [1, 2, 3])
    assert make(4, 1000) == "table 4"  # it would push out all the others
    assert cache.num_bytes == 80


def test_making_a_digest_changes_nothing() -> None:
    tensor = torch.randn(100, 100, requires_grad=True)
    before, state = tensor.detach().clone(), torch.get_rng_state()
    digest_tensor(tensor, with_hash=True)
    row_hashes(tensor)
    assert torch.equal(tensor.detach(), before)
    assert tensor._version == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_a_digest_leaves_the_storage_its_owner_s() -> None:
    """``tensor.numpy()`` shares memory and makes a storage that can never be resized: FSDP then fails to free it."""
    for numel in (1, 100, 1000, 100_000):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
            tensor = torch.ones(numel).to(dtype)
            digest_tensor(tensor, with_hash=True)
            digest_tensor(tensor.view(numel, 1), offsets=(0, 1), global_shape=(numel, 3), with_hash=True)
            assert tensor.untyped_storage().resizable()
