"""The cache directory, and the hashes of files that are remembered in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import platformdirs

_SETTLED_NS = 2_000_000_000
"""A file touched more recently may still change within one tick of its clock."""


def cache_directory() -> Path:
    """Where encoded data is kept: `FRACTUS_CACHE`, else the user's cache directory."""
    return Path(os.environ.get("FRACTUS_CACHE") or platformdirs.user_cache_dir("fractus"))


def content_hashes(files: Iterable[Path], cache: Path) -> list[str]:
    """The SHA-256 of each file, read again only if its size or modification time is new.

    Raises:
        OSError: a file cannot be read.
    """
    index_file = cache / "hashes.json"
    index = _read_index(index_file)
    hashes: list[str] = []
    learned = False
    for file in files:
        path, stat = str(file.resolve()), file.stat()
        signature = (stat.st_size, stat.st_mtime_ns)
        known = index.get(path)
        if known is None or tuple(known[:2]) != signature:
            known = (*signature, content_hash(file))
            if time.time_ns() - stat.st_mtime_ns > _SETTLED_NS:
                index[path] = known
                learned = True
        hashes.append(known[2])
    if learned:
        with contextlib.suppress(OSError):  # It only saves time.
            write_atomically(index_file, json.dumps(index).encode())
    return hashes


def content_hash(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file that is either complete or not there, whenever the process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _read_index(file: Path) -> dict[str, Sequence[Any]]:
    try:
        index = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}  # It only saves time: without it, files are hashed again.
    return index if isinstance(index, dict) else {}
