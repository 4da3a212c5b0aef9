"""Cells that are quick, or go wrong; light, so that their processes start fast."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from fractus_bench.records import Cell, Chart, Group, Measured, SkipCellError
from fractus_bench.timing import compare


def work(*, repeats: int, sizes: list[int]) -> Measured:
    def call(size: int):
        def add() -> int:
            sum(range(1000 * size))
            return 10

        return add

    calls = {f"size {size}": call(size) for size in sizes}
    labels = {f"size {size}": {"size": size} for size in sizes}
    rows = compare(calls, repeats, labels=labels)
    for row in rows:
        row["gflops"] = 1.0
    return Measured(rows, {"threads_seen": os.environ["OMP_NUM_THREADS"]})


def fail(*, repeats: int, message: str) -> Measured:
    raise ValueError(message)


def die(*, repeats: int) -> Measured:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError("unreachable")


def sleep(*, repeats: int) -> Measured:
    time.sleep(100)
    return Measured([])


def wait(*, repeats: int) -> Measured:
    subprocess.run(["sleep", "1000"], check=True)
    return Measured([])


def grow(*, repeats: int) -> Measured:
    kept = []
    while True:
        kept.append(bytearray(b"x") * 40_000_000)
        time.sleep(0.005)


def skip(*, repeats: int) -> Measured:
    raise SkipCellError("there is nothing to measure")


def fake(name: str, function: str, **rest) -> Cell:
    target = f"fake_cells:{function}"
    return Cell(name=f"fake/{name}", summary=f"It {name}s.", target=target, **rest)


FAKES = Group(
    name="fake",
    text="Not real.",
    cells=(
        fake("work", "work", arguments={"sizes": [1, 2, 4]}, repeats=3),
        fake("raise", "fail", arguments={"message": "two\nlines"}),
        fake("die", "die"),
        fake("sleep", "sleep", limit=1.0),
        fake("grow", "grow", limit=60.0),
        fake("skip", "skip"),
    ),
    charts=(Chart(title="Sums", x="size", y="us_per_token", cells="fake/work"),),
)

ENDLESS = Group(name="fake", text="Not real.", cells=(FAKES.cells[1], fake("wait", "wait")))
