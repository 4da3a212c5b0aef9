"""What the tests of the text plugin share."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # Machines that run tests are busy.
settings.load_profile("no deadline")

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"needs the data in {DATA}")
    return DATA


@pytest.fixture
def tiktoken_cache(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tiktoken knows gpt2 without a network."""
    copy = tmp_path / "tiktoken"
    copy.mkdir()
    for file in (shared_data / "tiktoken_cache").iterdir():
        shutil.copyfile(file, copy / file.name)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(copy))


@pytest.fixture
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection fails at once, and nothing is cached."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
