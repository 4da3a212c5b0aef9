"""Shards are a partition, and turns are as even as can be."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

from fractus_core.api import Shard, take_turns


@pytest.mark.parametrize("length", [0, 1, 3, 10, 1_000_003])
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_bounds_are_a_partition(length: int, count: int) -> None:
    bounds = [Shard(i, count).bounds(length) for i in range(count)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == length
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
    sizes = [end - begin for begin, end in bounds]
    assert max(sizes) - min(sizes) <= 1


def test_a_shard_is_written_as_it_is_read() -> None:
    assert Shard.parse("3/4") == Shard(3, 4)
    assert str(Shard(3, 4)) == "3/4"


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/4", "0/0", "1/2/3", "a/b", "1.0/2", "0/ 4"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="shard"):
        Shard.parse(text)


@pytest.mark.parametrize("shares", [(1,), (1, 1), (3, 1), (1, 3), (5, 3, 2), (7, 1, 1)])
def test_turns_are_even(shares: tuple[int, ...]) -> None:
    """At no moment of a round has a lane had a whole turn more or less than its share."""
    lanes = [SimpleNamespace(name=i, share=share) for i, share in enumerate(shares)]
    turns = [lane.name for lane in take_turns(lanes)]  # type: ignore[arg-type]
    assert len(turns) == sum(shares)
    for name, share in enumerate(shares):
        assert turns.count(name) == share
        for moment in range(len(turns) + 1):
            due = moment * share / len(turns)
            assert abs(turns[:moment].count(name) - due) < 1.5
