"""How often something is done: every so many steps, or every so many seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Cadence:
    """Exactly one of the two is set."""

    steps: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """`500` is steps; `90s`, `10m` and `1h` are times. Raises `ValueError`."""
        match = re.fullmatch(r"(\d+)([smh]?)", text)
        if match is None or int(match[1]) == 0:
            raise ValueError(f"{text!r} is no cadence: write 500 (steps), 90s, 10m or 1h")
        number, unit = int(match[1]), match[2]
        return cls(seconds=number * _UNITS[unit]) if unit else cls(steps=number)

    def __str__(self) -> str:
        return f"{self.seconds:.0f}s" if self.seconds is not None else str(self.steps)

    def due(self, *, steps: int, seconds: float) -> bool:
        """After so many steps and seconds since the last time."""
        if self.seconds is not None:
            return seconds >= self.seconds
        assert self.steps is not None
        return steps >= self.steps
