"""The rows of a batch, shared by the ranks of a run: each has an equal part of them, in order.

Each rank opens the same source with all its rows and keeps its own of every batch. So a cursor says
nothing of how many ranks there are, and a run that was saved by two goes on with one, or four.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from torch import Tensor

from fractus_core.contract import Batch, Json, Source
from fractus_core.engine import EngineState
from fractus_core.errors import FractusError
from fractus_core.runs import ranks


class OwnRows:
    """This rank's rows of a source; satisfies `Source`."""

    def __init__(self, source: Source) -> None:
        """Raises `FractusError` if the ranks cannot have equally many."""
        if source.rows % ranks.world():
            raise FractusError(
                f"{source.rows} rows cannot be shared evenly by {ranks.world()} processes: start "
                f"as many as divide {source.rows}, or a run with a batch_size that is a multiple "
                f"of {ranks.world()}"
            )
        self.fingerprint = source.fingerprint
        self.rows = source.rows // ranks.world()
        self._source = source

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._source)
        return Batch(*map(ranks.own, (batch.observations, batch.targets, batch.starts)))

    def cursor(self) -> Json:
        return self._source.cursor()

    def seek(self, cursor: Json) -> None:
        self._source.seek(cursor)


def own_rows(state: EngineState) -> EngineState:
    """This rank's rows of the state of all."""
    return _each(state, ranks.own)


def all_rows(state: EngineState) -> EngineState:
    """The state of all ranks' rows, from this rank's."""
    return _each(state, ranks.together)


def _each(state: EngineState, f: Callable[[Tensor], Tensor]) -> EngineState:
    return dataclasses.replace(state.map(f), position=f(state.position))
