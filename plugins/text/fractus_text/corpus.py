"""What `--data` names: a corpus of documents, read as a stream."""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

from fractus_core.api import (
    FractusError,
    Progress,
    cache_directory,
    content_hashes,
    import_extra,
    load_hub_dataset,
)
from fractus_text.python_docs import python_docs
from fractus_text.readers import (
    Input,
    Piece,
    Utf8,
    read_dataset,
    read_jsonl,
    read_parquet,
    read_text,
    require_column,
)

OnInvalid = Literal["replace", "refuse"]
PYTHON_DOCS = "python-docs"
SUFFIXES = (".txt", ".md", ".py", ".jsonl", ".parquet")


class Corpus:
    """Documents of text in a fixed order. Iterating reads the pieces of one after the other.

    Empty documents are left out.
    """

    def __init__(
        self, name: str, inputs: Sequence[Input], *, on_invalid: OnInvalid, cache: Path
    ) -> None:
        self.name = name
        """What `--data` was."""
        self.on_invalid = on_invalid
        self._inputs = inputs
        self._cache = cache
        self._utf8 = Utf8(on_invalid)
        with self._reading():
            self._sizes = [sum(file.stat().st_size for file in item.files) for item in inputs]
        self.size = sum(self._sizes)
        """Bytes of input; what `Piece.read` ends at."""
        if self.size == 0:
            raise FractusError(f"{name} is empty; name data with text in it")

    @cached_property
    def fingerprint(self) -> str:
        """Of the content. Files seen before, by path, size and modification time, are not read."""
        return self._fingerprint()

    @property
    def replaced(self) -> int:
        """Files in which invalid UTF-8 has been replaced so far."""
        return len(self._utf8.replaced)

    def __iter__(self) -> Iterator[Piece]:
        before, empty, found = 0, True, False
        for item, size in zip(self._inputs, self._sizes, strict=True):
            with self._reading():
                for piece in item.read(self._utf8):
                    empty = empty and not piece.text  # the document, so far
                    if not empty:
                        found = True
                        yield Piece(piece.text, piece.ends, before + piece.read)
                    empty = empty or piece.ends
            before += size
        if not found:
            raise FractusError(f"{self.name} has no text in it; name other data")

    def texts(self, progress: Progress | None = None) -> Iterator[str]:
        """The text of each piece; `progress` is told after each."""
        for piece in self:
            yield piece.text
            if progress:
                progress(piece.read, self.size)

    def check_unchanged(self) -> None:
        """Raise `FractusError` if a file has changed since the fingerprint was taken."""
        if self._fingerprint() != self.fingerprint:
            raise FractusError(f"{self.name} changed while it was read; start again")

    def _fingerprint(self) -> str:
        files = [file for item in self._inputs for file in item.files]
        with self._reading():
            hashes = iter(content_hashes(files, self._cache))
        parts = [[item.form, *(next(hashes) for _ in item.files)] for item in self._inputs]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FractusError(
                f"cannot read {error.filename or self.name}: {error.strerror or error}"
            ) from None


def documents(
    data: str,
    *,
    column: str = "text",
    on_invalid: OnInvalid = "replace",
    cache: Path | None = None,
) -> Corpus:
    """The corpus that `data` names.

    Args:
        data: `python-docs`, a file, a folder (searched for files, but not in what is hidden), a
            glob, or `hf:NAME` or `hf:NAME:SPLIT`, a data set of the Hugging Face Hub.
        column: Where `.jsonl`, `.parquet` and the Hub keep the text.
        on_invalid: What is not UTF-8 is replaced by U+FFFD and its file counted, or refused.
        cache: Where the hashes of files are remembered; `cache_directory()` by default.

    Raises:
        FractusError: the data is missing or empty. That it is damaged, binary or without that
            column is found, and raised, when it is read.
    """
    cache = cache or cache_directory()
    if data == PYTHON_DOCS:
        inputs = python_docs()
    elif data.startswith("hf:"):
        inputs = [_hub(data, column)]
    else:
        inputs = [_file(path, column) for path in _find(data)]
    return Corpus(data, inputs, on_invalid=on_invalid, cache=cache)


def _find(data: str) -> list[Path]:
    path, suffixes = Path(data), ", ".join(SUFFIXES)
    if not data:
        raise FractusError("no data named; give a file, a folder, a glob, python-docs or hf:NAME")
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES:
            raise FractusError(f"{data}: cannot read {path.suffix or 'no suffix'}; use {suffixes}")
        return [path]
    if path.is_dir():
        found = [file for file in path.rglob("*") if not _hidden(file.relative_to(path))]
    elif any(mark in data for mark in "*?["):
        found = [Path(name) for name in glob.glob(data, recursive=True)]  # noqa: PTH207
    else:
        raise FractusError(
            f"no such data: {data}; give a file, a folder, a glob, python-docs or hf:NAME"
        )
    files = [file for file in found if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise FractusError(f"{data} matches no file to read; use {suffixes}")
    return sorted(files, key=lambda file: file.as_posix())


def _hidden(file: Path) -> bool:
    return any(part.startswith(".") for part in file.parts)


def _file(path: Path, column: str) -> Input:
    match path.suffix.lower():
        case ".jsonl":
            return Input((path,), f"rows:{column}", partial(read_jsonl, path, column))
        case ".parquet":
            import_extra("pyarrow", path)
            return Input((path,), f"rows:{column}", partial(read_parquet, path, column))
        case _:
            return Input((path,), "text", partial(read_text, path))


def _hub(data: str, column: str) -> Input:
    name, _, split = data.removeprefix("hf:").partition(":")
    split = split or "train"
    dataset = load_hub_dataset(data, name, split)
    require_column(column, dataset.column_names, data)
    files = tuple(Path(entry["filename"]) for entry in dataset.cache_files)
    size = sum(file.stat().st_size for file in files)
    return Input(files, f"hf:{split}:{column}", partial(read_dataset, dataset, column, size, data))
