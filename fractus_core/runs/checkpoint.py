"""Checkpoints: complete or not there, checked when read, the last few kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fractus_core.errors import FractusError
from fractus_core.runs.files import fsync, read_json, sha256_of_json, write_json, write_text
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
    """The directory `checkpoints/` of a run: one directory per checkpoint, named by its tokens.

    A directory with such a name is complete, since it was renamed when it was; a pointer names the
    newest.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self.directory = directory
        self.pointer = directory / POINTER
        self.keep = keep

    def names(self) -> list[str]:
        """Of all checkpoints, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted((p.name for p in self.directory.iterdir() if p.name.isdigit()), key=int)

    def newest(self) -> str | None:
        """The one that the pointer names; None before the first.

        Raises:
            FractusError: if the pointer names nothing that is there.
        """
        names = self.names()
        if not self.pointer.exists():  # killed between renaming and pointing
            return names[-1] if names else None
        name = self.pointer.read_bytes().decode(errors="replace").strip()
        if name not in names:
            found = ", ".join(names) or "none"
            raise FractusError(f"{self.pointer} is damaged: it names {name!r}, there are {found}")
        return name

    def save(self, tokens: int, checkpoint: Checkpoint) -> Path:
        """Write beside, push to disk, rename, point to it, and drop the oldest.

        Raises:
            FractusError: if it cannot be written; what was there before is untouched.
        """
        target = self.directory / str(tokens)
        for pause in (*RETRY_AFTER, None):
            try:
                self._write(target, checkpoint)
                break
            except (OSError, SafetensorError) as error:
                if pause is None:
                    raise FractusError(f"cannot save the checkpoint {target}: {error}") from error
                time.sleep(pause)
        for name in self.names()[: -self.keep]:
            shutil.rmtree(self.directory / name, ignore_errors=True)
        return target

    def _write(self, target: Path, checkpoint: Checkpoint) -> None:
        temporary = self.directory / f".{target.name}.{os.getpid()}"
        temporary.mkdir(parents=True)
        try:
            files = {}
            for name, tree in checkpoint.trees.items():
                path = temporary / f"{name}.safetensors"
                save_tree(path, tree)
                files[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
            content = {"info": dict(checkpoint.info), "files": files}
            write_json(temporary / MANIFEST, content | {"sha256": sha256_of_json(content)})
            fsync(temporary)
            shutil.rmtree(target, ignore_errors=True)  # of an attempt that failed after renaming
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        fsync(self.directory)
        write_text(self.pointer, target.name + "\n")

    def load(self, name: str) -> Checkpoint:
        """Raises `FractusError` naming the file that is missing or damaged."""
        directory = self.directory / name
        manifest = read_json(directory / MANIFEST)
        if not isinstance(manifest, dict):
            raise FractusError(f"{directory / MANIFEST} is damaged: it is no JSON object")
        checksum = manifest.pop("sha256", None)
        if checksum != sha256_of_json(manifest):
            raise FractusError(f"{directory / MANIFEST} is damaged: its checksum is not its own")
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
        return Checkpoint(info=manifest["info"], trees=trees)

    def newest_good(self) -> tuple[str, Checkpoint]:
        """The newest that is not damaged, with its name; those passed over are told on stderr.

        Raises:
            FractusError: if there is none.
        """
        for name in reversed(self.names()):
            try:
                return name, self.load(name)
            except FractusError as error:
                print(f"fractus: {error}: passed over", file=sys.stderr)
        raise FractusError(f"{self.directory}: no checkpoint can be read")

    def rewind(self, name: str | None) -> None:
        """Make `name` the newest: remove what is later, and what a killed save left.

        None is before the first.
        """
        if not self.directory.is_dir():
            return
        for later in self.names():
            if name is None or int(later) > int(name):
                shutil.rmtree(self.directory / later)
        for path in self.directory.glob(".*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if name is not None:
            write_text(self.pointer, name + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
