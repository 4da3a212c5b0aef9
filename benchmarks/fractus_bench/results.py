"""Results on disk: a JSON file for each group, an entry for each cell, the newest of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fractus_core.api import FractusError, write_atomically

Result = dict[str, Any]
COMMITTED, OWN = Path("benchmarks/results"), Path("bench-results")


def default_directory() -> Path:
    """Where results go and are read from, unless the user says so: the repository's, if here."""
    return COMMITTED if COMMITTED.is_dir() else OWN


def require_savable(directory: Path, cells: Iterable[str]) -> None:
    """Raises `FractusError` now, if results of these cells could not be saved once measured."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FractusError(
            f"cannot make {directory}: {error.strerror}; name another --out"
        ) from None
    if not os.access(directory, os.W_OK):
        raise FractusError(f"cannot write in {directory}; name another --out")
    for file in {_file(directory, cell) for cell in cells}:
        if file.exists():
            _read(file)


def save(directory: Path, result: Result) -> None:
    """Replace the cell's entry in its group's file."""
    file = _file(directory, result["cell"])
    entries = _read(file) if file.exists() else {}
    entries[result["cell"]] = result
    text = json.dumps(dict(sorted(entries.items())), indent=1, ensure_ascii=False)
    try:
        write_atomically(file, f"{text}\n".encode())
    except OSError as error:
        raise FractusError(f"cannot write {file}: {error.strerror}; name another --out") from None


def load(directory: Path) -> dict[str, Result]:
    """All results in a directory, by cell.

    Raises:
        FractusError: there are none, or a file is damaged.
    """
    files = sorted(directory.glob("*.json"))
    if not files or (directory / "run.json").exists():  # of a training run, not of a cell
        raise FractusError(f"no results in {directory}; make some with fractus bench run")
    return {name: result for file in files for name, result in _read(file).items()}


def _file(directory: Path, cell: str) -> Path:
    """Of the cell's group."""
    return directory / f"{cell.partition('/')[0]}.json"


def _read(file: Path) -> dict[str, Result]:
    try:
        entries = json.loads(file.read_bytes())
        if not all(entry["cell"] == name for name, entry in entries.items()):
            raise ValueError("its entries are not results")
    except OSError as error:
        raise FractusError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FractusError(f"damaged results {file}: {error}; move it away and run again") from None
    found: dict[str, Result] = entries
    return found
