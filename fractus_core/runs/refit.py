"""A run with one of its front-ends made anew: the engine and the other front-ends stay."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fractus_core.contract import Frontend, Json, Lane
from fractus_core.plugins.discovery import discover
from fractus_core.runs.derive import Origin, derive
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.model import as_module
from fractus_core.runs.opening import Opened, opened_at
from fractus_core.runs.optimizers import optimizers_of
from fractus_core.runs.run import Run


@dataclass(frozen=True, slots=True)
class Refit:
    """Made by `begin`; nothing is on the disk until `write`."""

    origin: Origin
    name: str
    """Of the front-end."""
    old: Opened
    """The run that it is made of; its front-end looks at the new data."""
    new: Opened
    """With the origin's engine and other front-ends, and with a fresh front-end, whose weights may
    be set before `write`."""
    lane: Lane
    """The new front-end's, with a source at its first batch."""
    _run: Run

    @classmethod
    def begin(
        cls,
        path: Path,
        out: Path,
        kind: type[Frontend],
        *,
        name: str | None,
        does: str,
        options: Json,
        data: str | None = None,
        allow_previous: bool = False,
    ) -> Self:
        """Look at a run and at what it would become.

        Args:
            path: the run.
            out: the new run's directory.
            kind: the front-end's class; if there are several, `name` says which, or it is the
                first.
            does: what such a front-end does, for the message that there is none.
            options: those of the front-end that change.
            data: other data for it.
            allow_previous: pass over checkpoints that are damaged.

        Raises:
            FractusError: `path` is no run, has no checkpoint or no such front-end; `out` exists;
                the options or the data are wrong.
        """
        directory = RunDirectory(out)
        directory.require_absent()
        registry = discover()
        origin = Origin.read(path, allow_previous=allow_previous)
        old = opened_at(registry, origin.directory, origin.config, origin.checkpoint)
        chosen = old.frontend(kind, name, does=does)
        name = next(n for n, frontend in old.model.frontends.items() if frontend is chosen)
        if data is not None:
            old = old.on(name, data)
        plugged = old.frontends[name]
        options = {**plugged.options, **options}
        schema = dict(type(chosen).infer_schema(plugged.data, options))
        changed = dataclasses.replace(plugged, options=options, schema=schema, fingerprints={})
        frontends = tuple(changed if f.name == name else f for f in origin.config.frontends)
        config = dataclasses.replace(origin.config, frontends=frontends, brain=None)
        run = Run.rehearse(registry, directory, config)
        kept = {f"frontend-{name}": as_module(run.model.frontends[name]).state_dict()}
        run.model.load({**origin.checkpoint.trees, **kept})
        new = Opened(run.model, {f.name: f for f in run.config.frontends}, config.seed, out)
        lane = next(lane for lane in run.lanes if lane.name == name)
        return cls(origin, name, old, new, lane, run)

    def write(self, lineage: Json) -> bool:
        """Write the new run, complete or not at all, to be gone on with by `--resume`.

        The front-end's streams start anew, since they have read other vectors than it makes, and
        so does what the optimizer knew of it; all else goes on.

        Returns whether the optimizer goes on; it starts anew if it is none of torch's.
        """
        trainer, frontend = self._run.trainer, as_module(self.lane.frontend)
        trees: dict[str, Any] = {
            "trainer": trainer.state_dict(),
            f"frontend-{self.name}": frontend.state_dict(),
            f"stream-{self.name}": self.lane.state.state_dict(),
        }
        optimizers = list(optimizers_of(trainer))
        if optimizers:
            trainer.load_state_dict(self.origin.checkpoint.trees["trainer"])
            for optimizer in optimizers:
                for parameter in frontend.parameters():
                    optimizer.state.pop(parameter, None)
            trees["trainer"] = trainer.state_dict()
        derive(
            self.origin,
            self._run.directory,
            config=self._run.config,
            trees=trees,
            cursors={self.name: self.lane.source.cursor()},
            lineage=lineage,
        )
        return bool(optimizers)
