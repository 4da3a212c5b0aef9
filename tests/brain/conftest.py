"""What the tests of brains share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from running import quicken, write_corpus

torch.set_num_threads(1)
quicken()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FRACTUS_CACHE", str(folder))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture
def brain(tmp_path: Path) -> Path:
    """Where a brain may be made."""
    return tmp_path / "brain"
