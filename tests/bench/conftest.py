"""Cells that are quick, or go wrong, and a folder to run them in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fractus_bench import groups
from fractus_bench.records import Cell, Chart, Group

torch.set_num_threads(1)


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


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake cells instead of the real ones; returns the current folder, which is empty."""
    monkeypatch.setattr(groups, "GROUPS", (FAKES,))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *_path()]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]
