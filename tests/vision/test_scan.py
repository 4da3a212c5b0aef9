"""Every order reads every place once, and has the property that it is chosen for."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from fractus_core.api import FractusError
from fractus_vision.scan import scan_order

ORDERS = ("raster", "snake", "hilbert", "centre-out")


def places(name: str, side: int) -> list[tuple[int, int]]:
    return [divmod(number, side) for number in scan_order(name, side)]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("side", [1, 2, 4, 8, 16])
def test_orders_are_permutations(name: str, side: int) -> None:
    assert sorted(scan_order(name, side)) == list(range(side * side))


@pytest.mark.parametrize("name", ["raster", "snake", "centre-out"])
def test_orders_of_any_side(name: str) -> None:
    for side in (3, 5, 6, 7, 12):
        assert sorted(scan_order(name, side)) == list(range(side * side))


@pytest.mark.parametrize(("name", "side"), [("hilbert", 8), ("hilbert", 32), ("snake", 7)])
def test_neighbours_in_time_are_neighbours_in_space(name: str, side: int) -> None:
    for (row, column), (next_row, next_column) in pairwise(places(name, side)):
        assert abs(row - next_row) + abs(column - next_column) == 1


def test_hilbert_is_local_at_every_scale() -> None:
    """Each aligned quarter of its time is a quarter of the square, and so within."""
    read = places("hilbert", 16)
    for scale in (2, 4, 8):
        for start in range(0, 256, scale * scale):
            squares = {
                (row // scale, column // scale) for row, column in read[start : start + scale**2]
            }
            assert len(squares) == 1


@pytest.mark.parametrize("side", [4, 7, 8])
def test_centre_out_goes_outwards(side: int) -> None:
    middle = (side - 1) / 2
    rings = [
        max(abs(row - middle), abs(column - middle)) for row, column in places("centre-out", side)
    ]
    assert rings == sorted(rings)
    for (row, column), (next_row, next_column) in pairwise(places("centre-out", side)):
        assert math.hypot(row - next_row, column - next_column) <= math.sqrt(5)


def test_raster_is_a_page() -> None:
    assert scan_order("raster", 3) == list(range(9))
    assert scan_order("snake", 3) == [0, 1, 2, 5, 4, 3, 6, 7, 8]


def test_hilbert_needs_a_power_of_two() -> None:
    with pytest.raises(FractusError, match="power of two; this one has 7"):
        scan_order("hilbert", 7)
