"""Checkpoints: complete or not there, checked when read, the last few kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fractus_core.errors import FractusError
from fractus_core.runs.files import fsync, read_json, write_json, write_text
from fractus_core.runs.trees import load_tree, save_tree

MANIFEST = "checkpoint.json"
POINTER = "latest"
RETRY_AFTER = (0.5, 2.0)
"""Seconds before a failed write is tried again; a passing fault must not end a week's run."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What one checkpoint holds."""

    info: Mapping[str, Any]
    """JSON: counters, cursors."""
    trees: Mapping[str, Any]
    """Name to a tree of tensors, a file each."""


class CheckpointStore:
    """The directory `checkpoints/` of a run: one directory per checkpoint, named by its tokens."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.directory = directory
        self.keep = keep

    def names(self) -> list[str]:
        """The complete checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted((p.name for p in self.directory.iterdir() if p.name.isdigit()), key=int)

    def newest(self) -> str | None:
        """The one that the pointer names; None before the first."""
        try:
            return (self.directory / POINTER).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return None

    def save(self, tokens: int, checkpoint: Checkpoint) -> Path:
        """Write beside, push to disk, rename, point to it, and drop the oldest.

        Raises:
            FractusError: if it cannot be written; what was there before is untouched.
        """
        target = self.directory / str(tokens)
        for pause in (*RETRY_AFTER, None):
            try:
                self._write(target, checkpoint)
                return target
            except (OSError, SafetensorError) as error:
                if pause is None:
                    raise FractusError(f"cannot save the checkpoint {target}: {error}") from error
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _write(self, target: Path, checkpoint: Checkpoint) -> None:
        temporary = self.directory / f".{target.name}.{os.getpid()}"
        temporary.mkdir(parents=True)
        try:
            files = {}
            for name, tree in checkpoint.trees.items():
                path = temporary / f"{name}.safetensors"
                save_tree(path, tree)
                files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            write_json(temporary / MANIFEST, {"info": dict(checkpoint.info), "files": files})
            fsync(temporary)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        fsync(self.directory)
        write_text(self.directory / POINTER, target.name + "\n")
        for name in self.names()[: -self.keep]:
            shutil.rmtree(self.directory / name)

    def load(self, name: str) -> Checkpoint:
        """Raises `FractusError` naming the file that is missing or damaged."""
        directory = self.directory / name
        manifest = read_json(directory / MANIFEST)
        trees = {}
        for file, expected in manifest["files"].items():
            path = directory / file
            if not path.is_file():
                raise FractusError(f"{path} is missing")
            if (size := path.stat().st_size) != expected["bytes"]:
                raise FractusError(
                    f"{path} is damaged: it has {size} bytes, the manifest says {expected['bytes']}"
                )
            if _sha256(path) != expected["sha256"]:
                raise FractusError(f"{path} is damaged: its checksum is not the manifest's")
            trees[path.stem] = load_tree(path)
        return Checkpoint(manifest["info"], trees)

    def rewind(self, name: str | None) -> None:
        """Make `name` the newest: remove what is later, and what a killed save left.

        None is before the first.
        """
        if not self.directory.is_dir():
            return
        for later in self.names():
            if name is None or int(later) > int(name):
                shutil.rmtree(self.directory / later)
        for path in self.directory.iterdir():
            if path.name.startswith(".") and path.is_dir():
                shutil.rmtree(path)
        if name is not None:
            write_text(self.directory / POINTER, name + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
