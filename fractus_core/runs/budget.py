"""How long a run goes on, and how much of that is spent. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Spent:
    """What a run has used so far, over all its processes."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    """In training itself; evaluation and saving are not counted."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits, of which the first to be reached ends the run; None does not limit."""

    tokens: int | None = None
    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, limit in asdict(self).items():
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"budget of {limit} {name}: must be positive and finite")

    @property
    def unlimited(self) -> bool:
        return self.tokens is None and self.steps is None and self.seconds is None

    def progress(self, spent: Spent) -> float:
        """0 at the start, 1 or more when spent."""
        pairs = (
            (spent.tokens, self.tokens),
            (spent.steps, self.steps),
            (spent.seconds, self.seconds),
        )
        return max((used / limit for used, limit in pairs if limit is not None), default=0.0)

    def part(self, count: int) -> Budget:
        """One of `count` equal parts; whole tokens and steps are rounded up."""
        return Budget(
            tokens=self.tokens and math.ceil(self.tokens / count),
            steps=self.steps and math.ceil(self.steps / count),
            seconds=self.seconds and self.seconds / count,
        )

    def describe(self) -> str:
        parts = [
            f"{self.tokens:,} tokens" if self.tokens else "",
            f"{self.steps:,} steps" if self.steps else "",
            duration(self.seconds) if self.seconds else "",
        ]
        return " or ".join(part for part in parts if part)


def duration(seconds: float) -> str:
    """In the unit that a person would take."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"
