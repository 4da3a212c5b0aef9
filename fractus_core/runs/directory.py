"""The files of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fractus_core.errors import FractusError
from fractus_core.runs import ranks
from fractus_core.runs.checkpoint import CheckpointStore
from fractus_core.runs.config import RunConfig
from fractus_core.runs.files import write_json


@dataclass(frozen=True, slots=True)
class RunDirectory:
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(self.path / "checkpoints")

    def create(self, config: RunConfig) -> None:
        """Raises `FractusError` if something is there already, or nothing can be."""
        self.require_absent()
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise FractusError(f"cannot make {self.path}: {error.strerror}") from error
        write_json(self.config_file, config.to_json())

    def require_absent(self) -> None:
        if self.path.exists() or self.path.is_symlink():
            raise FractusError(
                f"{self.path} exists: choose another --out, or go on with it by --resume"
            )

    def read_config(self) -> RunConfig:
        """Raises `FractusError` if this is no run or its `run.json` is damaged."""
        if not self.config_file.is_file():
            raise FractusError(f"{self.path} is no run: it has no {self.config_file.name}")
        return RunConfig.read(self.config_file)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training the same run."""
        if not self.config_file.is_file():
            raise FractusError(f"{self.path} is no run: it has no {self.config_file.name}")
        lock = FileLock(self.path / ".lock")

        def acquire() -> None:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise FractusError(f"{self.path} is being trained by another process") from None

        ranks.first(acquire)
        try:
            yield
        finally:
            lock.release()
