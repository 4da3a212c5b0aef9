"""Growing runs by commands, and looking at what that leaves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from running import one_line, start
from torch import Tensor

from fractus_core.cli.main import main
from fractus_core.plugins.discovery import discover
from fractus_core.runs.derive import Origin
from fractus_core.runs.run import Run

EXACT = ("--set", "d_model=64", "--set", "n_heads=4", "--set", "n_layers=3", "--set", "d_ff=192")
"""Growth of a tiny run that changes nothing. (It has d_model 32, 2 heads, 1 layer, d_ff 128.)"""


def train(corpus: Path, out: Path, *options: str) -> None:
    assert main(start(corpus, out, "--steps", "12", *options)) == 0


def grow(origin: Path, out: Path, *options: str) -> list[str]:
    return ["grow", str(origin), "-o", str(out), *options]


def refusal(capsys: pytest.CaptureFixture[str], args: list[str], code: int = 1) -> str:
    capsys.readouterr()
    assert main(args) == code
    return one_line(capsys.readouterr().err)


def config(out: Path) -> Any:
    return json.loads((out / "run.json").read_text())


def restored(path: Path) -> Run:
    """A run at its newest checkpoint, in memory."""
    origin = Origin.read(path)
    run = Run.assemble(discover(), origin.directory, dataclasses.replace(origin.config, brain=None))
    run.restore(origin.checkpoint)
    return run


@torch.no_grad()
def goes_on(path: Path) -> Tensor:
    """Logits of every lane's streams over the chunk that comes next, in their warm state."""
    run, found = restored(path), []
    for lane in run.lanes:
        batch = next(lane.source)
        vectors = lane.frontend.embed(batch.observations)
        state = lane.state.reset(batch.starts)
        hidden, _ = run.model.engine.tick_chunk(vectors, state)
        found.append(lane.frontend.answer(hidden).flatten())
    return torch.cat(found)
