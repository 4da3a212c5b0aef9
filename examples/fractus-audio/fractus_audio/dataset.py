"""What `--data` names: a folder of wav files, each with a class and a split."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from fractus_core.api import FractusError

TABLE = "labels.csv"
_COLUMNS = ("file", "label", "split")
_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Clip:
    file: Path
    name: str
    """The file's path in the folder, with slashes."""
    label: str
    split: str
    """`train`, `validation`, or `test`, which is not read where there is a `validation`."""


def find_clips(data: str, *, validation: float) -> list[Clip]:
    """The clips in the folder `data`.

    With a `labels.csv` in it, those that this lists; `test` is the validation data where it has no
    other. Else the wav files in class folders, of which the fraction `validation` of each class is
    held out: of its clips in the order of the hash of their names.

    Raises:
        FractusError: there is no such folder, or it is no such data.
    """
    root = Path(data)
    if not root.is_dir():
        raise FractusError(f"no such folder: {data}; give one of wav files with --data")
    table = root / TABLE
    try:
        return _listed(table) if table.exists() else _in_folders(root, validation)
    except OSError as error:
        raise FractusError(f"cannot read {error.filename or data}: {error.strerror}") from None


def classes_of(data: str, clips: list[Clip]) -> list[str]:
    """Raises `FractusError` if there is but one, and so nothing to tell apart."""
    classes = sorted({clip.label for clip in clips})
    if len(classes) < 2:
        raise FractusError(f"{data} has one class, {classes[0]!r}: give clips of at least two")
    return classes


def require_splits(data: str, clips: list[Clip]) -> None:
    """Raises `FractusError` if a class cannot be learnt, or nothing can be checked."""
    counts = Counter(clip.label for clip in clips if clip.split == "train")
    for label in sorted({clip.label for clip in clips}):
        if not counts[label]:
            raise FractusError(f"{data}: class {label!r} has no clip to train on; add one")
    if not any(clip.split == "validation" for clip in clips):
        raise FractusError(f"{data} has no clip to check with; add some of split validation")


# --------------------------------------------------------------------------------------- a table


def _listed(table: Path) -> list[Clip]:
    clips: dict[str, Clip] = {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, strict=True)
            columns = rows.fieldnames or ()
            for column in _COLUMNS:
                if column not in columns:
                    raise FractusError(
                        f"{table} has no column {column!r}; it has {', '.join(columns) or 'none'}"
                    )
            for row in rows:
                clip = _listed_clip(table, rows.line_num, row)
                if clip.name in clips:
                    raise FractusError(
                        f"{table}, line {rows.line_num}: {clip.name} is listed twice"
                    )
                clips[clip.name] = clip
    except (csv.Error, UnicodeDecodeError) as error:
        raise FractusError(f"{table} is no CSV file in UTF-8: {error}") from None
    if not clips:
        raise FractusError(f"{table} lists no clip")
    found = list(clips.values())
    if any(clip.split == "validation" for clip in found):
        return found
    return [replace(c, split="validation") if c.split == "test" else c for c in found]


def _listed_clip(table: Path, line: int, row: dict[str, str | None]) -> Clip:
    name, label, split = ((row[column] or "").strip() for column in _COLUMNS)
    for column, value in zip(_COLUMNS, (name, label, split), strict=True):
        if not value:
            raise FractusError(f"{table}, line {line}: its {column} is empty")
    if split not in _SPLITS:
        raise FractusError(f"{table}, line {line}: split {split!r} is none of {', '.join(_SPLITS)}")
    file = table.parent / name
    if not file.is_file():
        raise FractusError(f"{table}, line {line}: no such file: {file}")
    return Clip(file, name, label, split)


# ------------------------------------------------------------------------------------- folders


def _in_folders(root: Path, validation: float) -> list[Clip]:
    by_label: dict[str, list[Clip]] = defaultdict(list)
    for file in sorted(root.glob("*/**/*"), key=lambda file: file.as_posix()):
        path = file.relative_to(root)
        hidden = any(part.startswith(".") for part in path.parts)
        if file.suffix.lower() == ".wav" and file.is_file() and not hidden:
            label = path.parts[0]
            by_label[label].append(Clip(file, path.as_posix(), label, "train"))
    if not by_label:
        raise FractusError(f"{root} has neither {TABLE} nor class folders with wav files in them")
    clips = []
    for found in by_label.values():
        found.sort(key=lambda clip: sha256(clip.name.encode()).digest())
        # One at least, unless it is the only one.
        count = min(max(1, round(validation * len(found))), len(found) - 1)
        clips += [replace(clip, split="validation") for clip in found[:count]] + found[count:]
    return clips
