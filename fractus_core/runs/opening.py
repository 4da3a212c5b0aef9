"""Opening a run, or a brain, to use what it has learnt."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from fractus_core.brain.directory import BrainDirectory, Content
from fractus_core.contract import Source, Split
from fractus_core.errors import FractusError
from fractus_core.plugins.discovery import discover
from fractus_core.plugins.registry import Registry
from fractus_core.runs import evaluation
from fractus_core.runs.assembly import make_model, newest_checkpoint, open_source
from fractus_core.runs.checkpoint import Checkpoint
from fractus_core.runs.config import PluggedFrontend, RunConfig
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.model import Model

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Opened:
    """A model with its newest weights, in eval mode, and where it comes from."""

    model: Model
    frontends: Mapping[str, PluggedFrontend]
    """As in `model.frontends`, by the same names."""
    seed: int
    path: Path

    def frontend(self, kind: type[F], name: str | None, *, does: str) -> F:
        """The front-end of class `kind` called `name`, or the first of that class.

        Raises:
            FractusError: there is none; it `does` what is said to be wanted.
        """
        found = {n: f for n, f in self.model.frontends.items() if isinstance(f, kind)}
        chosen = next(iter(found), "") if name is None else name
        if chosen not in found:
            names = ", ".join(found or self.model.frontends)
            raise FractusError(
                f"{self.path} has no front-end {name or f'that {does}'}; it has {names}"
            )
        return found[chosen]

    def on(self, name: str, data: str) -> Self:
        """With other data for the front-end `name`, whatever it was trained on."""
        plugged = replace(self.frontends[name], data=data, fingerprints={})
        return replace(self, frontends={**self.frontends, name: plugged})

    def evaluate(
        self, name: str, *, split: Split = "validation", limit: int | None = None
    ) -> dict[str, Any]:
        """The figures of the front-end `name` on its data: see `evaluation.evaluate`."""
        frontend, plugged = self.model.frontends[name], self.frontends[name]

        def source() -> Source:
            return open_source(
                frontend,
                plugged,
                split,
                batch_size=evaluation.ROWS,
                chunk_len=evaluation.CHUNK,
                seed=self.seed,
            )

        return evaluation.evaluate(self.model.engine, frontend, source, limit=limit)


def open_run(path: Path, *, allow_previous: bool = False) -> Opened:
    """What was learnt in `path`, a run's directory or a brain's.

    Args:
        allow_previous: pass over checkpoints that are damaged.

    Raises:
        FractusError: if `path` is neither, or its newest weights are missing or damaged.
    """
    return open_with(discover(), path, allow_previous=allow_previous)


def open_with(registry: Registry, path: Path, *, allow_previous: bool = False) -> Opened:
    brain, run = BrainDirectory(path), RunDirectory(path)
    if not brain.exists and not run.config_file.is_file():
        raise FractusError(f"{path} is no run and no brain: it has neither run.json nor brain.json")
    opened = (
        _open_brain(registry, brain, allow_previous=allow_previous)
        if brain.exists
        else _open_run(registry, run, allow_previous=allow_previous)
    )
    for _, module in opened.model.modules():
        module.eval()
    return opened


def _open_run(registry: Registry, directory: RunDirectory, *, allow_previous: bool) -> Opened:
    config = directory.read_config()
    found = newest_checkpoint(directory, allow_previous=allow_previous)
    if found is None:
        raise FractusError(
            f"{directory.path} has no checkpoint yet: fractus run --resume "
            f"{shlex.quote(str(directory.path))}"
        )
    return opened_at(registry, directory, config, found[1])


def opened_at(
    registry: Registry, directory: RunDirectory, config: RunConfig, checkpoint: Checkpoint
) -> Opened:
    """What a run had learnt at `checkpoint`."""
    frontends = {plugged.name: plugged for plugged in config.frontends}
    model = make_model(registry, config.engine, frontends, config.seed)
    model.load(checkpoint.trees)
    return Opened(model, frontends, config.seed, directory.path)


def _open_brain(registry: Registry, directory: BrainDirectory, *, allow_previous: bool) -> Opened:
    config = directory.config()
    with directory.locked():
        if allow_previous and directory.store.names():
            content = Content.from_checkpoint(directory.store.newest_good()[1])
        else:
            try:
                content = directory.read()
            except FractusError as error:
                hint = "--allow-previous passes over what is damaged"
                raise FractusError(f"{error}; {hint}") from error
    if not content.frontends:
        raise FractusError(f"the brain {directory.path} is empty: no run has joined it yet")
    model = make_model(registry, config.engine, content.frontends, 0)
    model.load(content.weights)
    return Opened(model, content.frontends, 0, directory.path)
