"""The hooks a plugin module may implement, each with `@hookimpl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from fractus_core.plugins.specs import CommandSpec, FrontendSpec, TrainerSpec

if TYPE_CHECKING:
    from fractus_core.contract import Step

GROUP = "fractus"
"""The entry-point group that names plugin modules."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def fractus_frontends() -> list[FrontendSpec]:  # type: ignore[empty-body]
    """The front-ends this plugin adds."""


@hookspec
def fractus_trainers() -> list[TrainerSpec]:  # type: ignore[empty-body]
    """The trainers this plugin adds."""


@hookspec
def fractus_commands() -> list[CommandSpec]:  # type: ignore[empty-body]
    """The commands this plugin adds to `fractus`."""


@hookspec
def fractus_run_start(directory: Path, config: Mapping[str, Any]) -> None:
    """A run starts or resumes in `directory`; `config` is its `run.json`."""


@hookspec
def fractus_step(directory: Path, number: int, step: Step) -> None:
    """Optimizer step `number` of the run in `directory` has been made."""


@hookspec
def fractus_run_end(directory: Path, summary: Mapping[str, Any]) -> None:
    """The run in `directory` has reached its budget; `summary` is its `summary.json`."""
