"""Files as pieces of text. No more than a piece, a line or a batch of rows is in memory at once."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fractus_core.api import FractusError, import_extra

PIECE = 1 << 19
"""Most bytes of a text file in one piece."""
_ROWS = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """A document, or a part of a long one."""

    text: str
    ends: bool
    """Whether its document ends with it."""
    read: int
    """Bytes of the input read by now."""


@dataclass(slots=True)
class Utf8:
    """Decodes; what is not UTF-8 becomes U+FFFD and its file is counted, or it is refused."""

    on_invalid: Literal["replace", "refuse"]
    replaced: set[Path] = field(default_factory=set)

    def decode(self, data: bytes, file: Path, *, within: str = "", offset: int = 0) -> str:
        """Text of `data`, which starts at byte `offset` of `within` (a row, say) of `file`.

        A byte order mark at the start of a file is dropped.
        """
        if offset == 0 and not within:
            data = data.removeprefix(codecs.BOM_UTF8)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            if self.on_invalid == "refuse":
                raise FractusError(
                    f"{file}{within}: invalid UTF-8 at byte {offset + error.start}; "
                    "convert it to UTF-8 or let invalid bytes be replaced"
                ) from None
            self.replaced.add(file)
            return data.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Input:
    """One file of a corpus, or several that are read together."""

    files: tuple[Path, ...]
    form: str
    """What, besides the content of the files, decides which documents come out."""
    read: Callable[[Utf8], Iterator[Piece]]


def read_text(file: Path, utf8: Utf8) -> Iterator[Piece]:
    """A whole file is one document; a long one comes in pieces that end with a line, if it can."""
    with file.open("rb") as opened:
        offset, rest, ends = 0, b"", False
        while not ends:
            block = rest + opened.read(PIECE - len(rest))
            ends = len(block) < PIECE
            cut = len(block) if ends else _cut(block)
            data, rest = block[:cut], block[cut:]
            _refuse_binary(data, file, offset)
            text = utf8.decode(data, file, offset=offset)
            offset += cut
            yield Piece(text, ends, offset)


def read_jsonl(file: Path, column: str, utf8: Utf8) -> Iterator[Piece]:
    """Each line is a JSON object; its `column` is one document. Null is an empty document."""
    offset = 0
    with file.open("rb") as opened:
        for number, line in enumerate(opened, 1):
            _refuse_binary(line, file, offset)
            decoded = utf8.decode(line, file, offset=offset)
            offset += len(line)
            if not decoded.isspace():
                text = _json_column(decoded, column, f"{file}, line {number}")
                # An escape can spell half of a surrogate pair, which no UTF-8 can hold.
                data = text.encode(errors="surrogatepass")
                text = utf8.decode(data, file, within=f", line {number}, its {column!r}")
                yield Piece(text, True, offset)


def read_parquet(file: Path, column: str, utf8: Utf8) -> Iterator[Piece]:
    """Each row is one document. Null is an empty document."""
    arrow = import_extra("pyarrow", file)
    parquet = import_extra("pyarrow.parquet", file)
    try:
        with parquet.ParquetFile(file) as opened:
            require_column(column, opened.schema_arrow.names, str(file))
            batches = opened.iter_batches(batch_size=_ROWS, columns=[column])
            yield from _rows(
                (batch.column(0) for batch in batches),
                rows=opened.metadata.num_rows,
                size=file.stat().st_size,
                file=file,
                column=column,
                utf8=utf8,
            )
    except (arrow.ArrowException, OSError) as error:
        raise FractusError(f"damaged Parquet file {file}: {_first_line(error)}") from None


def read_dataset(dataset: Any, column: str, size: int, name: str, utf8: Utf8) -> Iterator[Piece]:
    """Each row of a `datasets.Dataset` is one document. Null is an empty document."""
    tables = dataset.select_columns([column]).with_format("arrow").iter(batch_size=_ROWS)
    yield from _rows(
        (table.column(0).combine_chunks() for table in tables),
        rows=len(dataset),
        size=size,
        file=Path(name),
        column=column,
        utf8=utf8,
    )


def require_column(column: str, names: Iterable[str], where: str) -> None:
    """Raise `FractusError` unless there is a column of that name."""
    names = sorted(names)
    if column not in names:
        raise FractusError(f"{where} has no column {column!r}; it has {', '.join(names) or 'none'}")


def _rows(
    arrays: Iterable[Any], *, rows: int, size: int, file: Path, column: str, utf8: Utf8
) -> Iterator[Piece]:
    import pyarrow

    row = 0
    for array in arrays:
        if not (pyarrow.types.is_string(array.type) or pyarrow.types.is_large_string(array.type)):
            raise FractusError(f"{file}: column {column!r} holds {array.type}, not text")
        # As bytes, because pyarrow does not check that a string is UTF-8.
        for value in array.cast(pyarrow.large_binary()).to_pylist():
            text = utf8.decode(value or b"", file, within=f", row {row}")
            row += 1
            yield Piece(text, True, size * row // rows)


def _json_column(line: str, column: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FractusError(f"{where}: damaged JSON line: {_first_line(error)}") from None
    if not isinstance(record, dict):
        raise FractusError(f"{where}: expected a JSON object, found {type(record).__name__}")
    require_column(column, record, where)
    text = record[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise FractusError(f"{where}: column {column!r} holds {type(text).__name__}, not text")
    return text


def _cut(block: bytes) -> int:
    """Where to end a piece: after the last line break, else before the last character."""
    line_break = block.rfind(b"\n")
    if line_break >= 0:
        return line_break + 1
    cut = len(block) - 1
    while cut > len(block) - 4 and block[cut] & 0xC0 == 0x80:  # a continuation byte
        cut -= 1
    return cut


def _refuse_binary(data: bytes, file: Path, offset: int) -> None:
    nul = data.find(b"\0")
    if nul >= 0:
        raise FractusError(
            f"{file} is binary, not text: NUL at byte {offset + nul}; leave it out or convert it"
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
