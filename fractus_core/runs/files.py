"""Writing so that a crash leaves either the old file or the new one."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from fractus_core.errors import FractusError


def fsync(path: Path) -> None:
    """Push a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        fsync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def sha256_of_json(value: Any) -> str:
    """The same for equal values, however they are laid out."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_format(path: Path, expected: int) -> dict[str, Any]:
    """A JSON object whose `format` is `expected`.

    Raises:
        FractusError: `path` is missing, damaged or of another format.
    """
    value = read_json(path)
    found = value.get("format") if isinstance(value, dict) else None
    if found != expected:
        raise FractusError(f"{path} has format {found}; this version of Fractus reads {expected}")
    assert isinstance(value, dict)
    return value


def read_json(path: Path) -> Any:
    """Raises `FractusError` naming the file if it is missing or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FractusError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FractusError(f"{path} is damaged: {error}") from error
