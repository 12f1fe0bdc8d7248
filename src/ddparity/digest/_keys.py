"""How the global index of an element decides its bucket, its sign and its hash weight. No torch.

A tensor is read as rows of blocks of 128 elements. For a tensor keyed by position there is one row, the whole
tensor flattened, and its key is 0. For a tensor keyed by sample there is a row a sample, and its key is the
sample's identity, so that rank, micro-batch and order stop mattering.

Each block gets a 64-bit id from (row key, number of the block in its row). The id gives the block a sign and one
of 256 groups; a group rotates its blocks by (group mod 128) and multiplies them with one of two fixed rows of
signs. So an element at position j of a block falls into bucket (j + rotation) mod 128: inside a block no two
elements collide, and between blocks they collide as in a CountSketch (Charikar, Chen, Farach-Colton 2002), whose
variance bound 2/128 of the squared norm holds up to the factor 1.5 for patterns that repeat in every block.

The exact hash weighs words of at most 32 bits; an element of 64 bits is two words. Were it one, a change of its top
bit alone would add 2**63 times an odd weight, whatever the weight: the sign flips of two float64 would cancel.
"""

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

BLOCK: Final = 128
GROUPS: Final = 256
HASH_TABLE: Final = 1 << 16

_SEED_BLOCK: Final = np.uint64(0x243F6A8885A308D3)
_SEED_SIGNS: Final = np.uint64(0x13198A2E03707344)
_SEED_TABLE: Final = np.uint64(0xA4093822299F31D0)
_SEED_CHUNK: Final = np.uint64(0x082EFA98EC4E6C89)


def mix64(values: U64) -> U64:
    """Scramble 64-bit words (the finaliser of SplitMix64, Steele, Lea, Flood 2014); a bijection."""
    x = np.asarray(values, dtype=np.uint64)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def block_ids(row_keys: U64, first: int, num: int) -> U64:
    """Return the ids of blocks ``first .. first + num - 1`` of each row, shape (rows * num,)."""
    numbers = np.arange(first, first + num, dtype=np.uint64)
    with np.errstate(over="ignore"):
        keys = mix64(np.asarray(row_keys, dtype=np.uint64) + _SEED_BLOCK)
        return mix64(keys[:, None] + mix64(numbers + _SEED_BLOCK)[None, :]).reshape(-1)


def element_ids(blocks: U64, rows: U64) -> U64:
    """Return the id of the block of each element, by the number of the block in its row and the key of the row."""
    with np.errstate(over="ignore"):
        return mix64(mix64(rows + _SEED_BLOCK) + mix64(blocks + _SEED_BLOCK))


def groups_of(ids: U64) -> npt.NDArray[np.int64]:
    """Return the group (0..255) of each block id."""
    return ((ids >> np.uint64(8)) & np.uint64(GROUPS - 1)).astype(np.int64)


def signs_of(ids: U64) -> npt.NDArray[np.float64]:
    """Return the sign (+1.0 or -1.0) of each block id."""
    return 1.0 - 2.0 * (ids & np.uint64(1)).astype(np.float64)


@lru_cache(maxsize=1)
def sign_rows() -> npt.NDArray[np.float64]:
    """Return the two fixed rows of signs, shape (2, 128)."""
    bits = mix64(np.arange(2 * BLOCK, dtype=np.uint64) + _SEED_SIGNS) & np.uint64(1)
    return (1.0 - 2.0 * bits.astype(np.float64)).reshape(2, BLOCK)


@lru_cache(maxsize=1)
def group_signs() -> npt.NDArray[np.float64]:
    """Return the signs of every group, shape (256, 128): groups 0..127 use row 0, the others row 1."""
    return np.repeat(sign_rows(), BLOCK, axis=0)


@lru_cache(maxsize=1)
def hash_table() -> U64:
    """Return 65,536 odd 64-bit weights: the weight of word i is table[i mod 65536] * chunk_weight(i div 65536)."""
    return mix64(np.arange(HASH_TABLE, dtype=np.uint64) + _SEED_TABLE) | np.uint64(1)


def chunk_weights(chunks: U64) -> U64:
    """Return the odd weight of each chunk of 65,536 words."""
    with np.errstate(over="ignore"):
        return mix64(np.asarray(chunks, dtype=np.uint64) + _SEED_CHUNK) | np.uint64(1)


def signs_and_buckets(index: U64, rows: U64) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return sign and bucket of each element, by its index in the row and the key of its row, all (n,)."""
    place = (index % np.uint64(BLOCK)).astype(np.int64)
    ids = element_ids(index // np.uint64(BLOCK), rows)
    groups = groups_of(ids)
    return signs_of(ids) * sign_rows()[groups // BLOCK, place], (place + groups) % BLOCK


def hash_weights(index: U64, rows: U64) -> U64:
    """Return the weight of each word, by its index in the row and the key of its row, all (n,)."""
    table = hash_table()[(index % np.uint64(HASH_TABLE)).astype(np.int64)]
    with np.errstate(over="ignore"):
        return table * chunk_weights(index // np.uint64(HASH_TABLE) + mix64(rows))


def flat_indices(local_shape: tuple[int, ...], offsets: tuple[int, ...], global_shape: tuple[int, ...]) -> U64:
    """Return the global flat index of each element of a shard that starts at ``offsets``, in the shard's order."""
    if not local_shape:
        return np.zeros(1, dtype=np.uint64)
    flat = np.zeros((1,) * len(local_shape), dtype=np.uint64)
    stride = 1
    for dim in range(len(local_shape) - 1, -1, -1):
        along = (np.arange(local_shape[dim], dtype=np.uint64) + np.uint64(offsets[dim])) * np.uint64(stride)
        flat = flat + along.reshape([-1 if d == dim else 1 for d in range(len(local_shape))])
        stride *= global_shape[dim]
    return flat.reshape(-1)


def contiguous_start(local: tuple[int, ...], offsets: tuple[int, ...], total: tuple[int, ...]) -> int | None:
    """Return the global flat index at which a shard starts if it is one contiguous range, else None."""
    first_cut = next((d for d in range(len(local)) if local[d] != 1), len(local))
    if any(local[d] != total[d] for d in range(first_cut + 1, len(local))):
        return None
    start, stride = 0, 1
    for dim in range(len(local) - 1, -1, -1):
        start += offsets[dim] * stride
        stride *= total[dim]
    return start
