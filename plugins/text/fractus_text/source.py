"""Token shards as batches of contiguous streams, with a position that is saved and restored."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import torch

from fractus_core.api import WHOLE, Batch, FractusError, Json, Shard, Split
from fractus_text.shards import Int64, TokenShards


class TokenSource:
    """Batches of one split of `TokenShards`; satisfies `fractus_core.contract.Source`.

    In each epoch the documents are put into an order: for training a permutation drawn from `seed`
    and the number of the epoch, for validation the order of the corpus. That sequence of T tokens
    is cut into `rows` contiguous streams of n chunks, n = (T - 1) // (rows * chunk_len), and batch
    i holds chunk i of each. A target is the next token of the sequence, so the last target of a
    chunk is the first observation of the next. What is left at the end, between 1 and
    rows * chunk_len tokens, is not observed in that epoch.

    A row starts anew at its first chunk of an epoch, and at each chunk that begins in another
    document than the chunk before it began in. States are reset between chunks only: where a
    document begins within a chunk, the rest of the chunk is read on from what came before.

    Training reads one `shard` of its split: an equal part of its tokens, in which the documents at
    the ends may be cut.

    Training has batch_size rows and goes on for ever. Other splits make one pass, with fewer rows
    if they are too short to fill so many.
    """

    def __init__(
        self,
        shards: TokenShards,
        split: Split,
        *,
        batch_size: int,
        chunk_len: int,
        seed: int,
        shard: Shard = WHOLE,
    ) -> None:
        """Raises `FractusError` if the split is too short for a batch."""
        self._shards = shards
        self._split = split
        self._seed = seed
        self._chunk_len = chunk_len
        self._starts, self._lengths = shards.documents(split)
        if split == "train":
            self._starts, self._lengths = part(self._starts, self._lengths, shard)
        self.tokens = int(self._lengths.sum())
        """T, with the end-of-text tokens."""
        rows = batch_size if split == "train" else 1
        least = rows * chunk_len + 1
        if self.tokens < least:
            instead = "a smaller batch or chunk"
            if split == "validation":
                instead = "hold out more of it by --text.validation"
            raise FractusError(
                f"{_name(split, shard)} has {self.tokens} tokens and a batch of {rows} x "
                f"{chunk_len} needs {least}; give more text, or {instead}"
            )
        self.rows = min(batch_size, (self.tokens - 1) // chunk_len)
        """B of the batches."""
        self.chunks = (self.tokens - 1) // (self.rows * chunk_len)
        """Batches in an epoch."""
        how = [seed, str(shard)] if split == "train" else []
        identity = [shards.fingerprint, shards.validation, split, self.rows, chunk_len, how]
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
        self._begin(0)

    def __iter__(self) -> TokenSource:
        return self

    def __next__(self) -> Batch:
        """Observations (B, C) int64, targets (B, C) int64, starts (B,) bool."""
        if self._chunk == self.chunks:
            if self._split != "train":
                raise StopIteration
            self._begin(self._epoch + 1)
        rows = np.arange(self.rows) * (self.chunks * self._chunk_len)
        begin = rows + self._chunk * self._chunk_len
        window = begin[:, None] + np.arange(self._chunk_len + 1)
        documents = self._document_at(window)
        tokens = torch.from_numpy(
            self._shards.take(self._order_starts[documents] + window - self._offsets[documents])
        )
        if self._chunk == 0:
            starts = np.ones(self.rows, bool)
        else:
            starts = documents[:, 0] != self._document_at(begin - self._chunk_len)
        self._chunk += 1
        return Batch(
            tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), torch.from_numpy(starts)
        )

    def cursor(self) -> Json:
        return {"epoch": self._epoch, "chunk": self._chunk}

    def seek(self, cursor: Json) -> None:
        """Raises `FractusError` if there is no such place."""
        epoch, chunk = cursor["epoch"], cursor["chunk"]
        if epoch < 0 or not 0 <= chunk <= self.chunks:
            raise FractusError(
                f"no chunk {chunk} in epoch {epoch}: the {self._split} split has {self.chunks} "
                "chunks an epoch; resume with the data, batch and chunk that the run began with"
            )
        self._begin(epoch)
        self._chunk = chunk

    def _begin(self, epoch: int) -> None:
        """Go to the first chunk of an epoch."""
        self._epoch, self._chunk = epoch, 0
        if self._split == "train":
            # Sorting raw draws, because numpy keeps those, unlike `permutation`, over its releases.
            draws = np.random.PCG64([self._seed, epoch]).random_raw(len(self._starts))
            order = np.argsort(draws, kind="stable")
        else:
            order = np.arange(len(self._starts))
        self._order_starts = self._starts[order]
        ends = np.cumsum(self._lengths[order])
        self._offsets: Int64 = ends - self._lengths[order]

    def _document_at(self, positions: Int64) -> Int64:
        """The number, in the order of this epoch, of the document at each position."""
        found: Int64 = np.searchsorted(self._offsets, positions, side="right") - 1
        return found


def part(starts: Int64, lengths: Int64, shard: Shard) -> tuple[Int64, Int64]:
    """The documents, whole or cut, that a shard of all their tokens consists of."""
    ends = np.cumsum(lengths)
    offsets = ends - lengths
    begin, end = shard.bounds(int(lengths.sum()))
    skipped = np.clip(begin - offsets, 0, lengths)
    kept = np.clip(end - offsets, 0, lengths) - skipped
    return (starts + skipped)[kept > 0], kept[kept > 0]


def _name(split: Split, shard: Shard) -> str:
    return f"shard {shard} of the train split" if shard.count > 1 else f"the {split} split"
