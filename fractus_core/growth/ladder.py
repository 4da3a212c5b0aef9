"""A ladder: one run after the other, each grown from the one before it.

It is a directory of run directories, `stage0`, `stage1`, ..., beside `ladder.json`, which says what
they are. Where it has got to, the runs themselves say: those that are there and have a
`summary.json` are done.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fractus_core.engine import PRESETS
from fractus_core.errors import FractusError
from fractus_core.growth.model import Step
from fractus_core.growth.run import grow_run
from fractus_core.growth.target import target
from fractus_core.plugins.registry import Registry
from fractus_core.runs.config import RunConfig
from fractus_core.runs.derive import Origin
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.files import read_format, write_json
from fractus_core.runs.run import Run

FORMAT = 1
MARK = "ladder.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    path: Path
    stages: tuple[str, ...]
    """Presets, ascending."""
    settings: dict[str, Any]
    """Fields of the engine that differ from every preset."""
    first: RunConfig
    """Of the first stage; the others have the same, but for the engine. The budget is a stage's."""

    @classmethod
    def plan(
        cls, path: Path, config: RunConfig, stages: tuple[str, ...], settings: dict[str, Any]
    ) -> Self:
        """`config` is of the first stage, with the budget of all."""
        first = dataclasses.replace(config, budget=config.budget.part(len(stages)))
        return cls(path=path, stages=stages, settings=settings, first=first)

    @staticmethod
    def is_at(path: Path) -> bool:
        return (path / MARK).is_file()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises `FractusError` if `path` is damaged."""
        value = read_format(path / MARK, FORMAT)
        try:
            return cls(
                path=path,
                stages=tuple(value["stages"]),
                settings=value["settings"],
                first=RunConfig.from_json(value["first"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FractusError(f"{path / MARK} is damaged: {error}") from error

    def _write(self) -> None:
        """Make `ladder.json`."""
        content = {
            "format": FORMAT,
            "stages": self.stages,
            "settings": self.settings,
            "first": self.first.to_json(),
        }
        write_json(self.path / MARK, content)

    def climb(
        self, registry: Registry, *, tell: Callable[[Step], None], allow_previous: bool = False
    ) -> Iterator[Run]:
        """Each stage's run that is not finished, in turn, to be trained before the next is asked
        for. It is locked meanwhile.

        Raises:
            FractusError: all are finished, or one cannot be started, grown or resumed.
        """
        configs = self.configs()
        directories = [RunDirectory(self.path / stage) for stage in self.stages]
        left = [i for i, stage in enumerate(directories) if not stage.summary_file.exists()]
        if not left:
            raise FractusError(
                f"{self.path} is finished: its last stage is extended by --resume "
                f"{directories[-1].path} with a larger --steps, --tokens or --minutes"
            )
        for i in left:
            directory, started = directories[i], None
            if not directory.path.exists() and i == 0:
                started = Run.start(registry, directory, self.first)
                self._write()  # not before: what cannot be started leaves nothing
            elif not directory.path.exists():
                origin = Origin.read(directories[i - 1].path)
                grow_run(registry, origin, configs[i].engine, directory, tell=tell)
            with directory.locked():
                run = started or Run.resume(registry, directory, allow_previous=allow_previous)
                run.resume_from = self.path
                yield run

    def configs(self) -> list[RunConfig]:
        """Of each stage.

        Raises:
            FractusError: one cannot be grown from the one before it.
        """
        engine = self.first.engine
        configs = [self.first]
        for before, stage in itertools.pairwise(self.stages):
            smaller, engine = engine, target(engine, PRESETS[stage] | self.settings)
            if smaller == engine:
                raise FractusError(f"stage {stage!r} is no larger than {before!r} before it")
            configs.append(dataclasses.replace(self.first, engine=engine))
        return configs
