"""Each rank's rows: together they are the batches of one process, so no token is read twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fractus_core.contract import Batch, Json
from fractus_core.engine import ContinuousThoughtEngine, EngineConfig
from fractus_core.errors import FractusError
from fractus_core.runs import ranks
from fractus_core.runs.rows import OwnRows, own_rows


class Numbers:
    """Batch n has row r at 100 n + 10 r and on."""

    fingerprint, rows = "numbers", 4

    def __init__(self) -> None:
        self.place = 0

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        x = 100 * self.place + 10 * torch.arange(4).unsqueeze(1) + torch.arange(3)
        self.place += 1
        return Batch(x, x + 1, x[:, 0] % 20 == 0)

    def cursor(self) -> Json:
        return {"place": self.place}

    def seek(self, cursor: Json) -> None:
        self.place = cursor["place"]


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setattr(ranks, "rank", lambda: rank)
    monkeypatch.setattr(ranks, "world", lambda: world)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_rows_of_all_ranks_are_all_rows(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    parts: list[list[Batch]] = []
    for rank in range(world):
        as_rank(monkeypatch, rank, world)
        source = OwnRows(Numbers())
        assert (source.fingerprint, source.rows) == ("numbers", 4 // world)
        source.seek({"place": 2})
        parts.append([next(source), next(source)])
        assert source.cursor() == {"place": 4}
    whole = Numbers()
    whole.seek({"place": 2})
    for batches in zip(*parts, strict=True):
        expected = next(whole)
        for field in dataclasses.fields(Batch):
            found: list[Tensor] = [getattr(batch, field.name) for batch in batches]
            assert torch.equal(torch.cat(found), getattr(expected, field.name))


def test_states_are_parted_as_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ContinuousThoughtEngine(EngineConfig(d_model=16, d_ff=16, expert_rank=8))
    _, _, state = engine(torch.randn(4, 5, 16), engine.initial_state(4))
    state = state.reset(torch.tensor([False, True, False, False]))
    parts = []
    for rank in range(2):
        as_rank(monkeypatch, rank, 2)
        parts.append(own_rows(state))
    assert [part.position.tolist() for part in parts] == [[5, 0], [5, 5]]
    assert torch.equal(torch.cat([part.thought for part in parts]), state.thought)
    joined = torch.cat([part.blocks[1].S for part in parts])
    assert torch.equal(joined, state.blocks[1].S)


def test_rows_that_cannot_be_shared_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 0, 3)
    with pytest.raises(FractusError, match=r"4 rows .* 3 processes.* multiple of 3"):
        OwnRows(Numbers())
