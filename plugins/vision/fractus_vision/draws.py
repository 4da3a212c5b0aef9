"""Random numbers that belong to an image: the same wherever a run begins or goes on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]


def draw(seed: Sequence[int], indices: Int64, count: int) -> UInt64:
    """(n, count) raw draws, row i those of number indices[i] of the sequence that `seed` names.

    Raw, because numpy keeps these over its releases, unlike its distributions.
    """
    generator = np.random.PCG64(list(seed))
    begin = generator.state
    rows = np.empty((len(indices), count), np.uint64)
    for row, index in zip(rows, indices.tolist(), strict=True):
        generator.state = begin
        row[:] = generator.advance(index * count).random_raw(count)
    return rows


def fractions(raw: UInt64) -> npt.NDArray[np.float32]:
    """(n, count) draws to (n, 4 count) numbers from 0 to just below 1."""
    parts: npt.NDArray[np.uint16] = raw.astype("<u8", copy=False).view("<u2")
    return parts.astype(np.float32) / np.float32(1 << 16)


def permutation(seed: Sequence[int], length: int) -> Int64:
    """The numbers below `length` in an order that `seed` decides."""
    raw = np.random.PCG64(list(seed)).random_raw(length)
    return np.argsort(raw, kind="stable")
