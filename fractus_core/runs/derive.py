"""A new run made from another: the same, but for what was changed in it.

Growth and the like change weights, sizes or vocabulary. Here is what they share: what the run was
is read whole, and what it became is written as a run that `fractus run --resume` goes on with.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractus_core.contract import Json
from fractus_core.errors import FractusError
from fractus_core.runs.assembly import newest_checkpoint
from fractus_core.runs.budget import Spent
from fractus_core.runs.checkpoint import Checkpoint
from fractus_core.runs.config import RunConfig
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.files import fsync

PER_FRONTEND = ("frontend", "stream")
"""What a checkpoint has a tree of for each front-end."""


@dataclass(frozen=True, slots=True)
class Origin:
    """A run as it was left at its newest checkpoint."""

    directory: RunDirectory
    config: RunConfig
    checkpoint: Checkpoint
    """`trees` has `engine`, `frontend-NAME`, `trainer`, `rng` and `stream-NAME`; `info` has
    `spent` and `cursors`."""

    @classmethod
    def read(cls, path: Path, *, allow_previous: bool = False) -> Origin:
        """Raises `FractusError` if `path` is no run, or has no checkpoint that can be read."""
        directory = RunDirectory(path)
        config = directory.read_config()
        found = newest_checkpoint(directory, allow_previous=allow_previous)
        if found is None:
            raise FractusError(f"{path} has no checkpoint yet: train it first")
        return cls(directory, config, found[1])

    @property
    def spent(self) -> Spent:
        return Spent(**self.checkpoint.info["spent"])


def derive(
    origin: Origin,
    out: RunDirectory,
    *,
    config: RunConfig,
    trees: Mapping[str, Any],
    cursors: Mapping[str, Json] | None = None,
    lineage: Json,
) -> None:
    """Write `out`, complete or not at all: a run that goes on from where `origin` is.

    It counts from zero: budget, steps and metrics are its own. It has left the brain, if `origin`
    shared one.

    Args:
        config: the origin's, with what has changed. The budget may be any.
        trees: those of the checkpoint that have changed, by name; the others are the origin's. The
            streams of a front-end are `EngineState.state_dict()`, the trainer's tree is its
            `state_dict()`.
        cursors: by front-end, where those have changed.
        lineage: what was done, such as {"grown_from": ..., "changes": ...}; when in the origin's
            life that was, is added.

    Raises:
        FractusError: if `out` exists or cannot be written.
    """
    out.require_absent()
    entry = {**lineage, "spent": dataclasses.asdict(origin.spent)}
    config = dataclasses.replace(config, brain=None, lineage=[*origin.config.lineage, entry])
    names = [plugged.name for plugged in config.frontends]
    places = {**origin.checkpoint.info["cursors"], **(cursors or {})}
    info = {
        "config": config.identity(),
        "spent": dataclasses.asdict(Spent()),
        "averages": {name: {} for name in names},
        "cursors": {name: places[name] for name in names},
        "metrics_size": 0,
    }
    wanted = ["engine", "trainer", "rng", *(f"{of}-{n}" for n in names for of in PER_FRONTEND)]
    found = {**origin.checkpoint.trees, **trees}
    made = RunDirectory(out.path.with_name(f".{out.path.name}.{os.getpid()}"))
    try:
        made.create(config)
        made.checkpoints.save(0, Checkpoint(info, {name: found[name] for name in wanted}))
        fsync(made.path)
        made.path.rename(out.path)
        fsync(out.path.parent)
    except OSError as error:
        raise FractusError(f"cannot write {out.path}: {error.strerror}") from error
    finally:
        shutil.rmtree(made.path, ignore_errors=True)
