"""Folders and tables as sequences of encoded images with labels. Little of them is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fractus_core.api import FractusError, import_extra

_ROWS = 256
"""Of a table, in memory at once."""


@dataclass(frozen=True, slots=True)
class Item:
    """An encoded image."""

    name: str
    """For messages: its file, or its table and row."""
    image: bytes | Path | None
    label: object
    """The number or the name of its class, None if it has none."""


class Part(Protocol):
    """One split of a data set, in a fixed order."""

    @property
    def files(self) -> Sequence[Path]:
        """All that it reads."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Item]: ...
    def labels(self) -> list[Any]:
        """The different labels, in no order; None is left out."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Files that lie in folders named after their classes."""

    root: Path
    files: Sequence[Path]

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Item]:
        for file in self.files:
            yield Item(str(file), file, file.relative_to(self.root).parts[0])

    def labels(self) -> list[Any]:
        return list({file.relative_to(self.root).parts[0] for file in self.files})


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a table keeps images and labels."""

    image: str
    label: str
    names: tuple[str, ...]
    """Of the classes, where the table says; else empty."""


def find_columns(schema: Any, where: str, *, image: str, label: str) -> Columns:
    """Look up columns in an Arrow schema.

    Args:
        image: Its name; empty for the first column that can hold images.

    Raises:
        FractusError: there is no such column, or it holds something else.
    """
    arrow = import_extra("pyarrow", where)
    fields = {field.name: field.type for field in schema}

    def holds_images(kind: Any) -> bool:
        if arrow.types.is_struct(kind):
            return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
        return bool(arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind))

    if not image:
        image = next((name for name, kind in fields.items() if holds_images(kind)), "")
        if not image:
            raise FractusError(f"{where} has no column of images; it has {', '.join(fields)}")
    for column in (image, label):
        if column not in fields:
            raise FractusError(f"{where} has no column {column!r}; it has {', '.join(fields)}")
    if not holds_images(fields[image]):
        raise FractusError(f"{where}: column {image!r} holds {fields[image]}, not images")
    kind = fields[label]
    is_text = arrow.types.is_string(kind) or arrow.types.is_large_string(kind)
    if not (is_text or arrow.types.is_integer(kind)):
        raise FractusError(f"{where}: column {label!r} holds {kind}, not numbers or names")
    return Columns(image, label, _class_names(schema, label))


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """As the library `datasets` writes them into the metadata of a schema."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, ValueError, TypeError):
        return ()


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """The rows of one file after the other."""

    files: Sequence[Path]
    columns: Columns

    def __len__(self) -> int:
        return sum(open_parquet(file).metadata.num_rows for file in self.files)

    def __iter__(self) -> Iterator[Item]:
        for file in self.files:
            opened, row = open_parquet(file), 0
            columns = [self.columns.image, self.columns.label]
            for batch in _damage_named(opened.iter_batches(_ROWS, columns=columns), file):
                yield from _items(batch, self.columns, str(file), row)
                row += len(batch)

    def labels(self) -> list[Any]:
        found: set[Any] = set()
        for file in self.files:
            batches = open_parquet(file).iter_batches(columns=[self.columns.label])
            for batch in _damage_named(batches, file):
                found |= set(batch.column(0).unique().to_pylist())
        return list(found - {None})


def open_parquet(file: Path) -> Any:
    """A `pyarrow.parquet.ParquetFile`; `FractusError` if it is damaged."""
    arrow = import_extra("pyarrow", file)
    try:
        return import_extra("pyarrow.parquet", file).ParquetFile(file)
    except (arrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


def _damage_named(batches: Iterator[Any], file: Path) -> Iterator[Any]:
    arrow = import_extra("pyarrow", file)
    try:
        yield from batches
    except (arrow.ArrowException, OSError) as error:
        raise _damaged(file, error) from None


def _damaged(file: Path, error: Exception) -> FractusError:
    return FractusError(f"damaged Parquet file {file}: {str(error).partition(chr(10))[0]}")


@dataclass(frozen=True, slots=True)
class HubSplit:
    """The rows of a `datasets.Dataset`."""

    name: str
    dataset: Any
    columns: Columns

    @property
    def files(self) -> Sequence[Path]:
        return [Path(entry["filename"]) for entry in self.dataset.cache_files]

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Item]:
        row = 0
        for table in self._tables([self.columns.image, self.columns.label]):
            yield from _items(table, self.columns, self.name, row)
            row += len(table)

    def labels(self) -> list[Any]:
        found: set[Any] = set()
        for table in self._tables([self.columns.label]):
            found |= set(table.column(0).unique().to_pylist())
        return list(found - {None})

    def _tables(self, columns: list[str]) -> Iterator[Any]:
        chosen = self.dataset.select_columns(columns).with_format("arrow")
        yield from chosen.iter(batch_size=_ROWS)


def _items(table: Any, columns: Columns, where: str, row: int) -> Iterator[Item]:
    """Rows of an Arrow table or batch, the first of which is number `row`."""
    images = table.column(columns.image).to_pylist()
    labels = table.column(columns.label).to_pylist()
    for number, (image, label) in enumerate(zip(images, labels, strict=True), row):
        if isinstance(image, dict):
            path = image.get("path")
            image = image["bytes"] or (Path(path) if path else None)
        yield Item(f"{where}, row {number}", image, label)
