"""`metrics.jsonl`: one JSON object a line, appended, cut back to the checkpoint on resume."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fractus_core.errors import FractusError


class MetricsLog:
    """Everything measured in a run. What depends on the clock stands under the key `wall`, so that
    the rest of an interrupted run's lines equals an uninterrupted run's.
    """

    def __init__(self, path: Path, *, size: int = 0, tensorboard: Path | None = None) -> None:
        """Continue a file of `size` bytes; what stands behind was written after the checkpoint."""
        self._path = path
        path.touch()
        self._file = path.open("r+", encoding="utf-8")
        if (found := path.stat().st_size) < size:
            print(f"fractus: {path} has {found} bytes, {size} were written", file=sys.stderr)
        else:
            self._file.truncate(size)
        self._file.seek(0, os.SEEK_END)
        self._board = _summary_writer(tensorboard) if tensorboard is not None else None

    def write(self, kind: str, step: int, figures: dict[str, Any], wall: dict[str, float]) -> None:
        line = {"kind": kind, "step": step, **figures, "wall": wall}
        with self._named_errors():
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if self._board is not None:
            for name, value in _scalars(figures | wall):
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def size(self) -> int:
        """Bytes so far, all on the disk."""
        with self._named_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.tell()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FractusError(f"cannot write {self._path}: {error.strerror or error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        # All that was to be kept has been flushed; a full disk has been told already.
        with suppress(OSError):
            self._file.close()
        if self._board is not None:
            self._board.close()


def _scalars(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numbers of nested figures, by path."""
    found: list[tuple[str, float]] = []
    for name, value in figures.items():
        if isinstance(value, int | float):
            found.append((prefix + name, value))
        elif isinstance(value, dict):
            found += _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for i, item in enumerate(value):
                found += _scalars(item, f"{prefix}{name}/{i}/")
    return found


def _summary_writer(directory: Path) -> Any:
    require_tensorboard()
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory))


def require_tensorboard() -> None:
    """Raises `FractusError` if the extra is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise FractusError("--tensorboard needs an extra: pip install 'fractus[tensorboard]'")
