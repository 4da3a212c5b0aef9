"""What the tests of several processes share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from running import quicken, write_corpus

torch.set_num_threads(1)
quicken()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")
