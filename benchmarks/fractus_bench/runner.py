"""Runs a cell in a process of its own, within a time and a memory: whatever it does, we go on.

And whatever becomes of us, it does not: its stdin is a pipe from here, and when that closes it ends
itself (see `child`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from fractus_bench import machine
from fractus_bench.records import Cell

POLL = 0.1
"""Seconds between looks at the process."""
MEMORY_SHARE = 0.8
"""A cell may take so much of the memory that is free when it starts."""
TERMINATED = 143
"""What a shell says of a process that SIGTERM ended: 128 + SIGTERM."""


@dataclass(frozen=True, slots=True)
class Runner:
    command: str
    """What the user typed, to be kept with the results."""
    threads: int
    repeats: int | None = None
    """Instead of each cell's own."""

    def run(self, cell: Cell) -> dict[str, Any]:
        """The result of a cell: what it measured, or how it failed, and with what.

        A child that is still running when this is interrupted is ended.
        """
        repeats = self.repeats or cell.repeats
        begun, date = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        with tempfile.TemporaryDirectory(prefix="fractus-bench-") as folder:
            outcome = self._outcome(cell, repeats, Path(folder))
        return {
            "cell": cell.name,
            **outcome,
            "seconds": round(time.monotonic() - begun, 1),
            "date": date,
            "command": self.command,
            "threads": self.threads,
            "repeats": repeats,
            "machine": machine.describe(),
        }

    def _outcome(self, cell: Cell, repeats: int, folder: Path) -> dict[str, Any]:
        call = {"target": cell.target, "arguments": dict(cell.arguments), "repeats": repeats}
        file, log = folder / "outcome.json", folder / "log"
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        with (
            log.open("w") as opened,
            subprocess.Popen(
                [sys.executable, "-m", "fractus_bench.child", json.dumps(call), str(file)],
                stdout=opened,
                stderr=opened,
                stdin=subprocess.PIPE,
                env=os.environ | threads,
                start_new_session=True,  # Ctrl-C is for us, and its children can be ended with it
            ) as process,
        ):
            try:
                broken, most = _watch(process, cell.limit)
            finally:
                _end(process)
        if broken is None and file.exists():
            found: dict[str, Any] = json.loads(file.read_bytes())
        else:
            found = broken or {"status": "crashed", "detail": _last_words(process.returncode, log)}
        return {**found, "most_memory_mb": round(most / 1e6)}


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """SIGTERM ends this process as Ctrl-C does: what is running is ended first."""

    def exit_(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(TERMINATED)

    previous = signal.signal(signal.SIGTERM, exit_)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _watch(process: subprocess.Popen[bytes], limit: float) -> tuple[dict[str, str] | None, int]:
    """Wait for its end. Returns which limit it broke, if any, and the most memory seen."""
    allowed = MEMORY_SHARE * psutil.virtual_memory().available
    seen, most, deadline = psutil.Process(process.pid), 0, time.monotonic() + limit
    while True:
        try:
            process.wait(POLL)
            return None, most
        except subprocess.TimeoutExpired:
            pass
        with suppress(psutil.NoSuchProcess):
            most = max(most, seen.memory_info().rss)
        if most > allowed:
            detail = f"took {most / 1e9:.1f} GB of the {allowed / 1e9:.1f} GB that it may"
            return {"status": "out of memory", "detail": detail}, most
        if time.monotonic() > deadline:
            return {"status": "timed out", "detail": f"not done after {limit:g} s"}, most


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of it and of its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(code: int, log: Path) -> str:
    how = f"ended with status {code}"
    if code < 0:
        how = f"killed by {signal.Signals(-code).name}"
    lines = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how}: {last}" if last else how
