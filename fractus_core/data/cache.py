"""The cache: what is made of data once, kept in a directory named after what decided it.

A directory is complete or not there, and every file in it is checked when it is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from fractus_core.contract import Json
from fractus_core.errors import FractusError

MANIFEST = "manifest.json"
_SETTLED_NS = 2_000_000_000
"""A file touched more recently may still change within one tick of its clock."""


def cache_directory() -> Path:
    """Where made data is kept: `FRACTUS_CACHE`, else the user's cache directory."""
    return Path(os.environ.get("FRACTUS_CACHE") or platformdirs.user_cache_dir("fractus"))


@dataclass(frozen=True, slots=True)
class Cached:
    """One complete directory of the cache."""

    directory: Path
    facts: Json
    """What its maker had to say of it."""
    files: dict[str, str]
    """Name and SHA-256 of each file."""


def cached(
    kind: str, identity: Json, make: Callable[[Path], Json], *, cache: Path | None = None
) -> Cached:
    """The directory that `make` makes, from the cache if it is there.

    Several processes may ask at once: one makes it, the others wait.

    Args:
        kind: What it holds, in a word; a folder of the cache.
        identity: Decides what is made, a JSON object. Another identity is another directory.
        make: Given an empty folder, fills it with files, and returns facts to keep with them.
        cache: `cache_directory()` by default.

    Raises:
        FractusError: the cache cannot be written; a file in it is missing, cut short or altered.
    """
    cache = cache or cache_directory()
    directory = cache / kind / _hash(identity)[:32]
    if not directory.exists():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(directory.with_suffix(".lock")):
                if not directory.exists():
                    _make(directory, identity, make)
        except OSError as error:
            raise FractusError(
                f"cannot write the cache of {kind} in {cache}: {error.strerror or error}; "
                "set FRACTUS_CACHE to a folder with room"
            ) from None
    return _open(directory, identity, cache)


def _make(directory: Path, identity: Json, make: Callable[[Path], Json]) -> None:
    temporary = directory.with_suffix(".tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    temporary.mkdir()
    try:
        facts = make(temporary)
        files = sorted(temporary.iterdir())
        manifest = {
            "identity": dict(identity),
            "facts": dict(facts),
            "files": {file.name: content_hash(file) for file in files},
        }
        write_atomically(temporary / MANIFEST, json.dumps(manifest, indent=1).encode())
        temporary.replace(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _open(directory: Path, identity: Json, cache: Path) -> Cached:
    manifest_file = directory / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(manifest_file.read_bytes())
        found = Cached(directory, dict(manifest["facts"]), dict(manifest["files"]))
        if _hash(manifest["identity"]) != _hash(identity):
            raise ValueError("it does not belong to this directory")
    except OSError as error:
        raise _damaged(manifest_file, error.strerror or "unreadable") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(manifest_file, str(error)) from None
    files = [directory / name for name in sorted(found.files)]
    try:
        hashes = content_hashes(files, cache)
    except OSError as error:
        raise _damaged(Path(error.filename or directory), error.strerror or "unreadable") from None
    for file, content in zip(files, hashes, strict=True):
        if content != found.files[file.name]:
            raise _damaged(file, f"{file.stat().st_size} bytes of other content")
    return found


def _damaged(file: Path, what: str) -> FractusError:
    return FractusError(
        f"damaged cache {file}: {what}; delete {file.parent} and start again to make it anew"
    )


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------------------------------- files


def content_hashes(files: Iterable[Path], cache: Path | None = None) -> list[str]:
    """The SHA-256 of each file, read again only if its size or modification time is new.

    Raises:
        OSError: a file cannot be read.
    """
    index_file = (cache or cache_directory()) / "hashes.json"
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
