"""The orders in which a square grid is read."""

from __future__ import annotations

import math
from collections.abc import Callable

from fractus_core.api import FractusError

Place = tuple[int, int]
"""Row and column."""


def scan_order(name: str, side: int) -> list[int]:
    """The raster numbers (row * side + column) of a `side` x `side` grid, as they are read.

    Raises:
        FractusError: `hilbert` on a grid whose side is no power of two.
    """
    return [row * side + column for row, column in _ORDERS[name](side)]


def _raster(side: int) -> list[Place]:
    return [(row, column) for row in range(side) for column in range(side)]


def _snake(side: int) -> list[Place]:
    """Every other row backwards, so that neighbours in time are neighbours in space."""
    return [
        (row, column if row % 2 == 0 else side - 1 - column)
        for row in range(side)
        for column in range(side)
    ]


def _hilbert(side: int) -> list[Place]:
    """Hilbert's curve: what is near in time is near in space, at every scale."""
    if side & (side - 1):
        raise FractusError(
            f"the scan hilbert needs a grid whose side is a power of two; this one has {side}: "
            "choose another size, patch_size or scan"
        )
    if side == 1:
        return [(0, 0)]
    half = side // 2
    quarter = _hilbert(half)
    return [
        *((column, row) for row, column in quarter),
        *((row, column + half) for row, column in quarter),
        *((row + half, column + half) for row, column in quarter),
        *((side - 1 - column, half - 1 - row) for row, column in quarter),
    ]


def _centre_out(side: int) -> list[Place]:
    """Ring by ring around the centre, each ring around the clock."""
    middle = (side - 1) / 2

    def key(place: Place) -> tuple[float, float]:
        y, x = place[0] - middle, place[1] - middle
        return max(abs(y), abs(x)), math.atan2(y, x)

    return sorted(_raster(side), key=key)


_ORDERS: dict[str, Callable[[int], list[Place]]] = {
    "raster": _raster,
    "snake": _snake,
    "hilbert": _hilbert,
    "centre-out": _centre_out,
}
