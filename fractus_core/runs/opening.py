"""Opening a run to use what it has learnt."""

from __future__ import annotations

from pathlib import Path

from fractus_core.plugins.discovery import discover
from fractus_core.runs.assembly import load_run
from fractus_core.runs.config import RunConfig
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.model import Model


def open_run(path: Path, *, allow_previous: bool = False) -> tuple[RunConfig, Model]:
    """The configuration of the run in `path`, and its model with the newest weights.

    Args:
        allow_previous: pass over checkpoints that are damaged.

    Raises:
        FractusError: if `path` is no run, or its newest checkpoint is missing or damaged.
    """
    return load_run(discover(), RunDirectory(path), allow_previous=allow_previous)
