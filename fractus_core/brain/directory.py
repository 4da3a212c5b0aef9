"""The directory of a brain: what it is, its newest weights, and who may touch them when."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from fractus_core.brain.config import BrainConfig, Rule
from fractus_core.engine import EngineConfig
from fractus_core.errors import FractusError
from fractus_core.runs.checkpoint import Checkpoint, CheckpointStore
from fractus_core.runs.config import PluggedFrontend
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.files import write_json

MARK = "brain.json"
PATIENCE = 600.0
"""Seconds to wait for another lane's exchange, which takes as long as writing the weights."""


@dataclass(slots=True)
class LaneRecord:
    """What the brain knows of a lane; exact, since it is written together with the weights."""

    frontends: list[str]
    """Keys of `Content.frontends`."""
    run: str
    """The directory of its run."""
    steps: int = 0
    """Of its run, at its last exchange."""
    tokens: int = 0
    """Digested: what the lane had read for the differences that are in the weights."""
    exchanges: int = 0
    joined: int = 0
    """The number of its joining; no two have the same."""
    last_exchange: int = 0
    """The number of that exchange; at first, of its joining."""
    time: float = 0.0
    """When that was, in seconds since 1970."""
    n: int = 1
    """How many lanes shared in that, this one included."""
    drift: float = 0.0
    """|own - brain| / |brain| of the core's weights after it: how far it had gone its own way."""


@dataclass(slots=True)
class Content:
    """What an exchange reads and writes, all of it at once."""

    number: int = 0
    """Of exchanges and joinings so far."""
    frontends: dict[str, PluggedFrontend] = field(default_factory=dict)
    lanes: dict[str, LaneRecord] = field(default_factory=dict)
    weights: dict[str, Any] = field(default_factory=dict)
    """`engine`, a `frontend-KEY` for each front-end, and `outer`, if the rule keeps something."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        info = checkpoint.info
        return cls(
            number=info["number"],
            frontends={k: PluggedFrontend(**v) for k, v in info["frontends"].items()},
            lanes={k: LaneRecord(**v) for k, v in info["lanes"].items()},
            weights=dict(checkpoint.trees),
        )

    def to_checkpoint(self) -> Checkpoint:
        info = dataclasses.asdict(self)
        del info["weights"]
        return Checkpoint(info, self.weights)

    def key_of(self, plugged: PluggedFrontend) -> str | None:
        """The front-end that is the same but for its data and how often it has its turn."""
        for key, known in self.frontends.items():
            if all(
                getattr(known, name) == getattr(plugged, name)
                for name in ("name", "distribution", "options", "schema")
            ):
                return key
        return None


class BrainDirectory:
    """Everything but `brain.json` is read and written under a lock that one process has at a time.

    `exchanges/N/` holds the weights after exchange N, complete or not there; `lanes/NAME.lock` is
    held by the process that trains the lane, so that a lane whose process died is known at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = CheckpointStore(path / "exchanges")

    @property
    def exists(self) -> bool:
        return (self.path / MARK).is_file()

    def config(self) -> BrainConfig:
        if not self.exists:
            raise FractusError(f"{self.path} is no brain: it has no {MARK}")
        return BrainConfig.read(self.path / MARK)

    def open_or_create(self, engine: EngineConfig, rule: Rule | None) -> BrainConfig:
        """The brain here, or a new one that has no weights yet.

        Raises:
            FractusError: its engine or its rule is another, or the path is something else.
        """
        self.require_fit(engine, rule)
        if not self.exists:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FractusError(f"cannot make {self.path}: {error.strerror}") from error
            with self.locked():
                if not self.exists:
                    made = BrainConfig(uuid.uuid4().hex, engine, rule or "auto")
                    write_json(self.path / MARK, made.to_json())
        self.require_fit(engine, rule)
        return self.config()

    def require_fit(self, engine: EngineConfig, rule: Rule | None) -> None:
        """Raises `FractusError`, with both values, if the brain here has another engine or rule."""
        # Listed first: another process may be making a brain, whose mark it writes before the rest.
        occupied = self.path.is_dir() and any(p.name[0] != "." for p in self.path.iterdir())
        if not self.exists:
            if occupied:
                raise FractusError(
                    f"{self.path} is no brain and not empty: choose another --brain, a new one is "
                    "made where there is nothing"
                )
            return
        found = self.config()
        ours, theirs = dataclasses.asdict(engine), dataclasses.asdict(found.engine)
        differing = [name for name in ours if ours[name] != theirs[name]]
        if differing:
            values = ", ".join(f"{n} {theirs[n]} (this run: {ours[n]})" for n in differing)
            settings = " ".join(f"--set {n}={theirs[n]}" for n in differing)
            raise FractusError(f"the brain {self.path} has {values}: start with {settings}")
        if rule is not None and rule != found.rule:
            raise FractusError(
                f"the brain {self.path} merges by {found.rule}, not by {rule}: leave out --merge"
            )

    # --------------------------------------------------------------------------------- the locks

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else reads or writes meanwhile. The lock of a process that dies is free."""
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            raise FractusError(
                f"{self.path} has been locked by another process for {PATIENCE:g} s"
            ) from None
        except OSError as error:
            raise FractusError(f"cannot lock {self.path}: {error.strerror}") from error
        try:
            yield
        except OSError as error:
            raise FractusError(f"cannot use the brain {self.path}: {error}") from error
        finally:
            lock.release()

    def lane_lock(self, lane: str) -> FileLock:
        """To be held while `lane` is trained."""
        folder = self.path / "lanes"
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{lane}.lock")

    def is_alive(self, lane: str) -> bool:
        """Whether a process trains it. To be asked under the brain's lock."""
        try:
            with self.lane_lock(lane).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def taken(self, content: Content) -> set[str]:
        """The lanes whose names are not free. To be asked under the brain's lock.

        That of a run that died before it was written may be had again.
        """
        return {
            name
            for name, lane in content.lanes.items()
            if lane.exchanges
            or self.is_alive(name)
            or RunDirectory(Path(lane.run)).config_file.is_file()
        }

    # ------------------------------------------------------------------------------- the content

    def read(self) -> Content:
        """To be called under the lock.

        Raises:
            FractusError: if a file is missing or damaged, which it names.
        """
        newest = self.store.newest()
        return Content() if newest is None else Content.from_checkpoint(self.store.load(newest))

    def write(self, content: Content) -> None:
        """Make `content` the newest, numbered anew; on return it is on the disk, and acknowledged.

        To be called under the lock.
        """
        self.store.rewind(self.store.newest())  # what a killed process left
        content.number += 1
        self.store.save(content.number, content.to_checkpoint())

    def snapshot(self) -> Content:
        """Raises `FractusError` if this is no brain, or is damaged."""
        self.config()
        with self.locked():
            return self.read()


def free_name(base: str, taken: Container[str]) -> str:
    """`base`, or `base-2`, `base-3`, ..."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def now() -> float:
    return round(time.time(), 3)
