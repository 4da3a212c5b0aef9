"""What a brain is and how a run is tied to one. Imports no torch."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from fractus_core.engine import EngineConfig
from fractus_core.errors import FractusError
from fractus_core.runs.files import read_format

FORMAT = 1
SYNC_EVERY = 25
"""Measured: docs/sharing.md. At 100 a lane of Muon is far from the brain before it looks again."""

Rule = Literal["auto", "mean", "sum", "nesterov"]
"""`auto`: differences of lanes with the same front-ends are averaged, of others added; `mean`: all
averaged; `sum`: all added; `nesterov`: as `auto`, with an outer optimizer."""
RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True, slots=True)
class BrainConfig:
    """`brain.json`: what never changes."""

    id: str
    engine: EngineConfig
    rule: Rule

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `FractusError` if `path` is missing, damaged or of another format."""
        value = read_format(path, FORMAT)
        try:
            if value["rule"] not in RULES:
                raise ValueError(f"its rule is {value['rule']!r}, not one of {', '.join(RULES)}")
            return cls(value["id"], EngineConfig(**value["engine"]), value["rule"])
        except (KeyError, TypeError, ValueError) as error:
            raise FractusError(f"{path} is damaged: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class BrainLink:
    """A run's tie to a brain, in its `run.json`."""

    directory: str
    lane: str = ""
    """Empty until it is joined: then the front-end's name, with
    the shard if there are several, and a number if that is taken."""
    sync_every: int = SYNC_EVERY
    """Optimizer steps between exchanges."""
    rule: Rule | None = None
    """For a brain that this run begins; None takes what is there."""
    id: str = ""
    """Of the brain that was joined."""
    joined: int = 0
    """As `LaneRecord.joined`: tells the run from another that has had the lane's name."""

    def __post_init__(self) -> None:
        if self.sync_every < 1:
            raise ValueError(f"sync_every = {self.sync_every}: must be at least 1")
        if self.lane and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.lane) is None:
            raise ValueError(
                f"lane {self.lane!r}: letters, digits, '.', '_' and '-' only, at most 64"
            )
