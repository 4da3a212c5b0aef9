"""Token shards of any size, of random tokens, in the layout that the text front-end caches."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fractus_core.api import Json, cached
from fractus_text.shards import FORMAT, SHARD, TokenShards, _open

DOCUMENT = 1000
"""Tokens in each."""


def open_shards(cache: Path, tokens: int, vocabulary: int) -> TokenShards:
    """Made if they are not there, else opened as a run opens its own."""
    identity = {"format": FORMAT, "random": tokens, "vocabulary": vocabulary}
    found = cached("tokens", identity, partial(_make, tokens, vocabulary), cache=cache)
    return _open(found, validation=0.01)


def _make(tokens: int, vocabulary: int, folder: Path) -> Json:
    assert tokens % DOCUMENT == 0 and vocabulary <= 1 << 16
    draw = np.random.default_rng(0)
    block = draw.integers(vocabulary, size=min(tokens, SHARD), dtype=np.uint16)
    for number, start in enumerate(range(0, tokens, SHARD)):
        np.save(folder / f"tokens-{number:05}.npy", block[: tokens - start])
    starts = np.arange(0, tokens, DOCUMENT)
    np.save(folder / "starts.npy", starts)
    np.save(folder / "sizes.npy", np.full(len(starts), 4 * DOCUMENT))
    np.save(folder / "hashes.npy", draw.permutation(len(starts)).astype(np.uint64))
    return {"replaced": 0}
