"""`run.json`: everything that decides a run, and where it comes from. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from fractus_core.brain.config import BrainLink
from fractus_core.contract import WHOLE, Shard
from fractus_core.engine import EngineConfig
from fractus_core.errors import FractusError
from fractus_core.runs.budget import Budget
from fractus_core.runs.cadence import Cadence
from fractus_core.runs.files import read_format, sha256_of_json

FORMAT = 2
"""Of `run.json` and of what lies beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """A front-end or trainer as chosen: the name, who provides it, and its resolved options."""

    name: str
    """As the user gave it; `distribution:name` where they said which."""
    distribution: str
    version: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedFrontend(Plugged):
    data: str
    schema: dict[str, Any]
    """From `Frontend.infer_schema`."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Of the data, by split."""
    share: int = 1
    """Optimizer steps in each round, where several front-ends take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    engine: EngineConfig
    frontends: tuple[PluggedFrontend, ...]
    trainer: Plugged
    seed: int
    budget: Budget
    log_every: int
    """Optimizer steps to a line of training figures."""
    eval_every: int
    """Optimizer steps between evaluations."""
    eval_tokens: int
    """Held-out vectors to read at most in each; the last one reads all there is."""
    checkpoint_every: Cadence
    shard: Shard = WHOLE
    """The part of every front-end's training data that this run reads."""
    brain: BrainLink | None = None
    environment: dict[str, str] = field(default_factory=dict)
    lineage: list[dict[str, Any]] = field(default_factory=list)
    """What the run was made of: grown from, merged from, operated on."""

    def __post_init__(self) -> None:
        for name in ("log_every", "eval_every", "eval_tokens"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} = {value!r}: must be a whole number, at least 1")

    def moved(self, data: Mapping[str, str], brain: Path | None) -> Self:
        """With front-ends' data, by their names, and the brain in other places."""
        frontends = tuple(replace(f, data=data.get(f.name, f.data)) for f in self.frontends)
        link = self.brain
        if brain is not None:
            if link is None:
                raise FractusError("the run has no brain: leave out --brain")
            link = replace(link, directory=str(brain))
        return replace(self, frontends=frontends, brain=link)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **dataclasses.asdict(self),
            "checkpoint_every": str(self.checkpoint_every),
            "shard": str(self.shard),
        }

    def identity(self) -> str:
        """A checksum of what cannot change between a run's start and a resume.

        Where data and brain lie may change: what they are, fingerprints and the id say.
        """
        values = self.to_json()
        for frontend in values["frontends"]:
            del frontend["data"]
        if not self.engine.decay_heads:  # newer than the first runs, whose checksums lack it
            del values["engine"]["decay_heads"]
        fixed = {f: values[f] for f in ("engine", "frontends", "trainer", "seed", "shard")}
        fixed["brain"] = self.brain and [self.brain.id, self.brain.lane]
        return sha256_of_json(fixed)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        fields = dict(value)
        fields.pop("format")
        return cls(
            **fields
            | {
                "engine": EngineConfig(**fields["engine"]),
                "frontends": tuple(PluggedFrontend(**f) for f in fields["frontends"]),
                "trainer": Plugged(**fields["trainer"]),
                "budget": Budget(**fields["budget"]),
                "checkpoint_every": Cadence.parse(fields["checkpoint_every"]),
                "shard": Shard.parse(fields["shard"]),
                "brain": fields["brain"] and BrainLink(**fields["brain"]),
            }
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `FractusError` if `path` is missing, damaged or of another format."""
        value = read_format(path, FORMAT)
        try:
            return cls.from_json(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FractusError(f"{path} is damaged: {error}") from error
