"""What `torch.compile` has made so far in this process."""

from __future__ import annotations

from torch._dynamo.utils import counters


class Compilations:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._graphs, self._breaks = _graphs(), _breaks()

    def since(self) -> int:
        """Graphs compiled; after the first round each is a shape or a kind of call that is new."""
        return _graphs() - self._graphs

    def breaks(self) -> int:
        """Places where a graph had to end before its function did."""
        return _breaks() - self._breaks


def _graphs() -> int:
    return counters["stats"]["unique_graphs"]


def _breaks() -> int:
    return sum(counters["graph_break"].values())
