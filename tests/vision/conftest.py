"""What the tests of the vision plugin share."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)  # Machines that run tests are busy.
settings.load_profile("no deadline")
torch.set_num_threads(1)

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    if not DATA.is_dir():
        pytest.skip(f"needs the data in {DATA}")
    return DATA


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection fails at once."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
