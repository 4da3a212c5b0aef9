"""A folder to run fake cells in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from fake_cells import FAKES

from fractus_bench import groups

torch.set_num_threads(1)


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake cells instead of the real ones; returns the current folder, which is empty."""
    monkeypatch.setattr(groups, "GROUPS", (FAKES,))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *_path()]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]
