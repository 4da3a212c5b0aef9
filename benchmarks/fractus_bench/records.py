"""The words of the benchmarks: cells, groups of them, and what a cell gives. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Row = dict[str, Any]
"""One line of a table: names and sizes, numbers, and spreads (see `timing.spread`). JSON."""
Status = Literal["ok", "skipped", "crashed", "timed out", "out of memory"]


@dataclass(frozen=True, slots=True)
class Measured:
    """What the function of a cell returns."""

    rows: list[Row]
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is true of the cell as a whole."""


class SkipCellError(Exception):
    """Raised by a cell that cannot be measured here; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement, made in a process of its own."""

    name: str
    """`group/what`."""
    summary: str
    target: str
    """`package.module:function`, imported in that process; called with `repeats` and `arguments`,
    it returns `Measured` or raises `SkipCellError`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 300.0
    """Seconds after which it is ended."""
    repeats: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture of a group's rows."""

    title: str
    x: str
    """The key of the rows that goes along the x axis; of bars, what names each."""
    y: str
    cells: str = "*"
    """A pattern: the cells whose rows are drawn."""
    kind: Literal["lines", "bars", "growth"] = "lines"
    """`growth` is a line with the power law through it, and with what the FLOP model predicts: the
    rows' `mflop_per_token`, on the scale of y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Cells that make one section of the report."""

    name: str
    text: str
    """What is measured, and how to read it."""
    cells: tuple[Cell, ...]
    charts: tuple[Chart, ...] = ()
