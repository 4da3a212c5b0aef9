"""What `--data` names: a data set of encoded images, in splits or in one piece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractus_core.api import FractusError, content_hashes, load_hub_dataset
from fractus_vision.decoding import InvalidItemError, suffixes
from fractus_vision.readers import (
    Columns,
    Folder,
    HubSplit,
    ParquetFiles,
    Part,
    find_columns,
    open_parquet,
)

CIFAR10 = "hf:uoft-cs/cifar10"
_TRAIN = "train"
_HELD_OUT = ("validation", "valid", "val", "test")
"""The names of the split that is not trained on; the first that is there is taken."""
_HELP = "give a folder of class folders, Parquet, glyphs, cifar10 or hf:NAME"


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    """What `--data` was."""
    classes: tuple[str, ...]
    labels: tuple[object, ...]
    """How the data itself names or numbers the classes, in the same order."""
    parts: Mapping[str, Part]
    """`train` and `validation`, or `all`."""
    faults: tuple[str, ...]
    """What is wrong with it as a whole."""
    fingerprint: str
    """Of the content of its files, and of what else decides images and labels."""

    def class_number(self, label: object) -> int:
        """Raises `InvalidItemError` if `label` is none of the data's labels."""
        if label is None:
            raise InvalidItemError("it has no label")
        if label not in self.labels:
            raise InvalidItemError(
                f"its label {label!r} is none of the {len(self.labels)} that there are, "
                f"{self.labels[0]!r} to {self.labels[-1]!r}"
            )
        return self.labels.index(label)


def find(data: str, *, image_column: str, label_column: str) -> Dataset:
    """The data set that `data` names, beside `glyphs`.

    Args:
        data: `cifar10`, a folder of class folders (in `train` and `test` or not), a Parquet file, a
            folder of such (`train-*` and `test-*` or not), or `hf:NAME`.
        image_column, label_column: as in `find_columns`.

    Raises:
        FractusError: there is no such data, or it is no such data set.
    """
    try:
        return _find(CIFAR10 if data == "cifar10" else data, image_column, label_column)
    except OSError as error:
        raise FractusError(
            f"cannot read {error.filename or data}: {error.strerror or error}"
        ) from None


def _find(data: str, image_column: str, label_column: str) -> Dataset:
    if data.startswith("hf:"):
        return _hub(data, image_column, label_column)
    path = Path(data)
    if path.is_file() and path.suffix == ".parquet":
        return _parquet(data, path.parent, [path], image_column, label_column)
    if path.is_file():
        raise FractusError(f"{data} is no Parquet file; {_HELP}")
    if not data or not path.is_dir():
        raise FractusError(f"no such data: {data or '(empty)'}; {_HELP}")
    tables = [file for file in _files(path) if file.suffix == ".parquet"]
    if tables:
        return _parquet(data, path, tables, image_column, label_column)
    return _folder(data, path)


# --------------------------------------------------------------------------------------- folders


def _folder(data: str, root: Path) -> Dataset:
    roots = _choose({path.name: path for path in _subfolders(root)}) or {"all": root}
    readable = suffixes()
    parts: dict[str, Part] = {}
    faults: list[str] = []
    for split, folder in roots.items():
        files: list[Path] = []
        for class_folder in _subfolders(folder):
            images = [file for file in _files(class_folder) if file.suffix.lower() in readable]
            files += images
            if not images:
                faults.append(f"{class_folder}: the class folder holds no image")
        if not files:
            raise FractusError(f"{folder} has no class folders with images in them; {_HELP}")
        parts[split] = Folder(folder, files)
    first = next(iter(parts.values()))
    classes = tuple(sorted(first.labels()))
    return Dataset(data, classes, classes, parts, tuple(faults), _fingerprint(parts, root, []))


def _subfolders(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _files(folder: Path) -> list[Path]:
    found = [
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(p.startswith(".") for p in file.relative_to(folder).parts)
    ]
    return sorted(found, key=lambda file: file.as_posix())


# ---------------------------------------------------------------------------------------- tables


def _parquet(
    data: str, root: Path, files: Sequence[Path], image_column: str, label_column: str
) -> Dataset:
    columns = find_columns(
        open_parquet(files[0]).schema_arrow, str(files[0]), image=image_column, label=label_column
    )
    by_prefix: dict[str, list[Path]] = {}
    for file in files:
        by_prefix.setdefault(file.stem.partition("-")[0], []).append(file)
    splits = _choose(by_prefix) or {"all": list(files)}
    parts = {split: ParquetFiles(found, columns) for split, found in splits.items()}
    return _table(data, root, columns, parts)


def _hub(data: str, image_column: str, label_column: str) -> Dataset:
    name = data.removeprefix("hf:")
    splits = dict(load_hub_dataset(data, name))
    chosen = _choose(splits)
    if not chosen:
        raise FractusError(f"{data} has the splits {', '.join(splits)}: {_TRAIN} is not among them")
    columns = find_columns(
        next(iter(chosen.values())).features.arrow_schema,
        data,
        image=image_column,
        label=label_column,
    )
    parts: dict[str, Part] = {
        split: HubSplit(f"{data} {split}", found, columns) for split, found in chosen.items()
    }
    return _table(data, Path(), columns, parts)


def _table(data: str, root: Path, columns: Columns, parts: Mapping[str, Part]) -> Dataset:
    labels: list[Any] = list(range(len(columns.names)))
    if not labels:
        found = next(iter(parts.values())).labels()
        labels = sorted(label for label in found if isinstance(label, str) or label >= 0)
    if not labels:
        raise FractusError(f"{data}: column {columns.label!r} has no label from 0 on")
    classes = columns.names or tuple(map(str, labels))
    form = [columns.image, columns.label, classes]
    return Dataset(data, classes, tuple(labels), parts, (), _fingerprint(parts, root, form))


# ------------------------------------------------------------------------------------ what all do


def _choose(splits: Mapping[str, Any]) -> dict[str, Any]:
    """`train` and `validation`, or `all` if there is but one to train on; else nothing."""
    if set(splits) == {_TRAIN}:
        return {"all": splits[_TRAIN]}
    held_out = next((name for name in _HELD_OUT if name in splits), None)
    if _TRAIN not in splits or held_out is None:
        return {}
    return {"train": splits[_TRAIN], "validation": splits[held_out]}


def _fingerprint(parts: Mapping[str, Part], root: Path, form: Sequence[Any]) -> str:
    described: list[Any] = [form]
    for split, part in parts.items():
        names = [_name(file, root) for file in part.files]
        described.append([split, names, content_hashes(part.files)])
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _name(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
