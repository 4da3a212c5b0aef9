"""Ways in which a file is damaged."""

from __future__ import annotations

import os
from pathlib import Path


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff\x00garbage")


def missing(path: Path) -> None:
    path.unlink()
