"""A corpus as tokens on disk: encoded once, then mapped into memory, never loaded.

A directory of the cache holds the tokens of all documents, each followed by the end-of-text token,
cut into shards of equal length, and for each document its start, its size and the hash of its text.
The directory is named after data and tokenizer; which documents are held back for validation is
decided when it is opened.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken

from fractus_core.api import Cached, FractusError, Json, Progress, Split, cached
from fractus_text.corpus import Corpus
from fractus_text.encoding import Tokens, encode_pieces
from fractus_text.tokenizers import to_schema

Int64 = npt.NDArray[np.int64]

FORMAT = 2
SHARD = 1 << 24
"""Tokens in each shard but the last."""


@dataclass(frozen=True, slots=True)
class TokenShards:
    """The tokens of a corpus, mapped into memory, and how its documents are split."""

    directory: Path
    fingerprint: str
    """Of data and tokenizer."""
    replaced: int
    """Files in which invalid UTF-8 was replaced."""
    validation: float
    tokens: int
    starts: Int64
    """(documents,) where each document begins."""
    sizes: Int64
    """(documents,) UTF-8 bytes of each document."""
    hashes: npt.NDArray[np.uint64]
    """(documents,) of the text of each document."""
    shards: list[npt.NDArray[Any]] = field(repr=False)
    maps: list[mmap.mmap] = field(repr=False, default_factory=list)
    """What the shards are views of."""

    def documents(self, split: Split) -> tuple[Int64, Int64]:
        """Starts and lengths in tokens, end-of-text tokens included, of a split's documents.

        Documents go to validation in the order of the hash of their text, those with the same text
        together, as long as they fit into the fraction `validation` of the bytes. If not even the
        first fits, because the corpus is one document or a few long ones, the end of the longest
        document is the validation split instead.

        Raises:
            FractusError: nothing can be held back, since the corpus is too short or repeats itself.
        """
        starts, lengths = np.asarray(self.starts), np.diff(self.starts, append=self.tokens)
        if split == "all":
            return starts, lengths
        _, group, copies = np.unique(self.hashes, return_inverse=True, return_counts=True)
        group_sizes = np.bincount(group, weights=self.sizes)
        held_back = (np.cumsum(group_sizes) <= self.validation * group_sizes.sum())[group]
        if held_back.any():
            chosen = held_back if split == "validation" else ~held_back
            return starts[chosen], lengths[chosen]

        unique_lengths = np.where(copies[group] == 1, lengths, 0)
        longest = int(unique_lengths.argmax())
        text = self.tokens - len(starts)
        tail = text - int(text * (1 - self.validation)) + 1  # its end-of-text token too
        tail = min(tail, int(unique_lengths[longest]) - 1)
        if tail < 2:
            raise FractusError(
                f"cannot hold back {self.validation:.0%} of {text} tokens in {len(starts)} "
                f"documents ({len(copies)} different) for validation; give more text"
            )
        cut = starts[longest] + lengths[longest] - tail
        if split == "validation":
            return np.array([cut]), np.array([tail])
        lengths[longest] -= tail
        return starts, lengths

    def take(self, positions: Int64) -> Int64:
        """The tokens at these positions, in the same shape."""
        shard, place = np.divmod(positions, len(self.shards[0]))
        tokens = np.empty(positions.shape, np.int64)
        for number in np.unique(shard):
            here = shard == number
            tokens[here] = self.shards[number][place[here]]
            if self.maps and sys.platform != "win32":
                # What was read stays in the system's cache, but this process need not be as large
                # as all that it has ever read: a page fault costs less than a microsecond.
                self.maps[number].madvise(mmap.MADV_DONTNEED)
        return tokens


def encode(
    corpus: Corpus,
    encoding: tiktoken.Encoding,
    *,
    cache: Path | None = None,
    validation: float = 0.1,
    progress: Progress | None = None,
) -> TokenShards:
    """The tokens of `corpus`, from the cache if they are there.

    Several processes may ask at once: one encodes, the others wait for it.

    Args:
        cache: `cache_directory()` by default.
        validation: The fraction of the bytes to hold back, more than 0 and less than 1.
        progress: Called with bytes of input done and in all, while encoding.

    Raises:
        FractusError: the corpus cannot be read, the cache cannot be written or is damaged.
    """
    assert 0 < validation < 1, validation
    identity = {
        "format": FORMAT,
        "corpus": corpus.fingerprint,
        "tokenizer": _hash(to_schema(encoding)),
    }

    def make(directory: Path) -> Json:
        _encode_into(directory, corpus, encoding, progress)
        corpus.check_unchanged()
        return {"replaced": corpus.replaced}

    found = cached("tokens", identity, make, cache=cache)
    if found.facts["replaced"] and corpus.on_invalid == "refuse":
        for _ in corpus:  # Raises where the invalid bytes are, which the cache does not know.
            pass
    return _open(found, validation)


def _open(found: Cached, validation: float) -> TokenShards:
    starts, sizes, text_hashes = (
        np.load(found.directory / name, mmap_mode="r")
        for name in ("starts.npy", "sizes.npy", "hashes.npy")
    )
    mapped = [
        np.load(found.directory / name, mmap_mode="r")
        for name in sorted(found.files)
        if name.startswith("tokens-")
    ]
    # As plain arrays, which index faster than numpy's memmap class and are the same memory.
    shards = [np.asarray(array) for array in mapped]
    return TokenShards(
        directory=found.directory,
        fingerprint=found.directory.name,
        replaced=found.facts["replaced"],
        validation=validation,
        tokens=sum(len(shard) for shard in shards),
        starts=starts,
        sizes=sizes,
        hashes=text_hashes,
        shards=shards,
        maps=[array.base for array in mapped],
    )


def _encode_into(
    directory: Path, corpus: Corpus, encoding: tiktoken.Encoding, progress: Progress | None
) -> None:
    writer = _ShardWriter(directory, np.uint16 if encoding.n_vocab <= 1 << 16 else np.uint32)
    end_of_text = np.array([encoding.eot_token], np.uint32)
    starts, sizes, hashes = [0], [0], []
    text_hash = _text_hash()
    for piece, tokens, data in encode_pieces(corpus, encoding):
        writer.write(tokens)
        text_hash.update(data)
        sizes[-1] += len(data)
        if piece.ends:
            writer.write(end_of_text)
            hashes.append(int.from_bytes(text_hash.digest(), "little"))
            starts.append(writer.tokens)
            sizes.append(0)
            text_hash = _text_hash()
        if progress:
            progress(piece.read, corpus.size)
    writer.close()
    _save(directory / "starts.npy", np.array(starts[:-1], np.int64))
    _save(directory / "sizes.npy", np.array(sizes[:-1], np.int64))
    _save(directory / "hashes.npy", np.array(hashes, np.uint64))


class _ShardWriter:
    """Cuts a stream of tokens into files of equal length; one of them is in memory."""

    def __init__(self, directory: Path, dtype: npt.DTypeLike) -> None:
        self.tokens = 0
        self._directory = directory
        self._buffer = np.empty(SHARD, dtype)
        self._filled = 0
        self._shards = 0

    def write(self, tokens: Tokens) -> None:
        self.tokens += len(tokens)
        while len(tokens):
            now = tokens[: len(self._buffer) - self._filled]
            tokens = tokens[len(now) :]
            self._buffer[self._filled : self._filled + len(now)] = now
            self._filled += len(now)
            if self._filled == len(self._buffer):
                self._flush()

    def close(self) -> None:
        if self._filled:
            self._flush()

    def _flush(self) -> None:
        file = self._directory / f"tokens-{self._shards:05}.npy"
        _save(file, self._buffer[: self._filled])
        self._shards += 1
        self._filled = 0


def _save(file: Path, array: npt.NDArray[Any]) -> None:
    with file.open("wb") as opened:
        np.save(opened, array, allow_pickle=False)
        opened.flush()
        os.fsync(opened.fileno())


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _text_hash() -> Any:
    return hashlib.blake2b(digest_size=8)
