"""What the tests of runs share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from running import STEPS, Left, left, quicken, start, write_corpus

from fractus_core.cli.main import main

torch.set_num_threads(1)
quicken()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What a run of `STEPS` leaves that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    corpus = write_corpus(folder / "corpus.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        assert main(start(corpus, folder / "run", *STEPS)) == 0
    return left(folder / "run")
