"""Digests and identities in a form that judges alike and tells nothing: keyed with a secret that is thrown away.

A sketch of a small tensor can be solved for the tensor, and an identity or a hash of a guessed sample can be checked
against the guess. Each sketch is therefore turned by a secret orthogonal matrix, one a name: distances, factors and
sums of digests of one name are what they were, to rounding. Hashes are multiplied by a secret odd number a name, which
keeps equality and sums modulo 2^64. Sample identities go through a keyed hash, the same in all trials of the bundle.
"""

import hashlib
import os

import numpy as np

from ddparity.trace._schema import SKETCH_SIZE

_WORD = 1 << 64
INDEX_LIMIT = 1 << 40
"""Identities below it are positions in a dataset; larger ones are hashes of a sample's content."""


class Veil:
    """One bundle's secrets."""

    def __init__(self) -> None:
        self._secret = os.urandom(32)
        self._turns: dict[str, np.ndarray] = {}
        self._odd: dict[str, int] = {}
        self._sketches: dict[tuple[str, bytes], int] = {}
        self._rows: list[np.ndarray] = []
        self._ids: dict[int, int] = {}

    def sketch(self, name: str, raw: bytes) -> int:
        """Return the number under which a sketch of (SKETCH_SIZE,) float64 is kept; equal ones are kept once."""
        key = name, raw
        if key not in self._sketches:
            values = np.frombuffer(raw, dtype="<f8")
            self._sketches[key] = len(self._rows)
            self._rows.append(values @ self._turn(name) if values.any() and np.isfinite(values).all() else values)
        return self._sketches[key]

    def sketches(self) -> bytes:
        """Return all sketches one after the other, little-endian float64."""
        return b"".join(row.astype("<f8").tobytes() for row in self._rows)

    def hash(self, name: str, value: int | None) -> int | None:
        """Return a hash under this bundle's key."""
        if value is None:
            return None
        if name not in self._odd:
            self._odd[name] = int.from_bytes(self._keyed(b"hash " + name.encode()), "little") | 1
        return value * self._odd[name] % _WORD

    def ids(self, values: np.ndarray) -> np.ndarray:
        """Return sample identities (n,) uint64 under this bundle's key; positions in a dataset stay what they are."""
        found = np.empty(len(values), dtype=np.uint64)
        for index, value in enumerate(values.tolist()):
            if value not in self._ids:
                keyed = int.from_bytes(self._keyed(b"id " + value.to_bytes(8, "little")), "little")
                self._ids[value] = value if value < INDEX_LIMIT else keyed | INDEX_LIMIT
            found[index] = self._ids[value]
        return found

    def _keyed(self, what: bytes) -> bytes:
        return hashlib.blake2b(what, key=self._secret, digest_size=8).digest()

    def _turn(self, name: str) -> np.ndarray:
        if name not in self._turns:
            seed = hashlib.blake2b(b"turn " + name.encode(), key=self._secret).digest()
            normal = np.random.default_rng(np.frombuffer(seed, dtype=np.uint32)).standard_normal((SKETCH_SIZE,) * 2)
            q, r = np.linalg.qr(normal)
            self._turns[name] = q * np.sign(np.diag(r))
        return self._turns[name]
