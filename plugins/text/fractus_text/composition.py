"""Rows of an embedding for another vocabulary, put together from the rows of the old one."""

from __future__ import annotations

from dataclasses import dataclass

import tiktoken
import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_text.encoding import token_bytes


@dataclass(frozen=True, slots=True)
class Composed:
    """The rows of a new vocabulary and where they come from."""

    rows: Tensor
    """(V, d_model)."""
    single: int
    """Rows of tokens that the old vocabulary has too."""
    composed: int
    """Means of the rows of two old tokens or more."""
    fresh: int
    """Rows of tokens with bytes that the old tokenizer has no token for."""


def pieces(token: bytes, encoding: tiktoken.Encoding) -> list[int]:
    """The tokens of `encoding` that are `token` together; none if it cannot be encoded."""
    ranks = encoding._mergeable_ranks
    if token in ranks:
        return [ranks[token]]
    try:
        text = token.decode()
    except UnicodeDecodeError:  # a part of a character
        known = all(bytes([byte]) in ranks for byte in token)
        return encoding._encode_single_piece(token) if known else []
    found = encoding.encode_ordinary(text)
    # What has no token is left out by tiktoken.
    return found if token_bytes(encoding)[found].sum() == len(token) else []


def compose(
    old_rows: Tensor, old: tiktoken.Encoding, new: tiktoken.Encoding, fresh: Tensor
) -> Composed:
    """A row for each token of `new`: the mean of the rows of its pieces in `old`.

    Special tokens have the row of the one with their name. What cannot be composed keeps its row
    of `fresh` (V, d_model).
    """
    found = {token: pieces(text, old) for text, token in new._mergeable_ranks.items()}
    for name, token in new._special_tokens.items():
        found[token] = [old._special_tokens[name]] if name in old._special_tokens else []
    known = {token: parts for token, parts in found.items() if parts}
    rows = fresh.clone()
    if known:
        lengths = torch.tensor([len(parts) for parts in known.values()])
        bag = torch.tensor([part for parts in known.values() for part in parts])
        offsets = lengths.cumsum(0) - lengths
        rows[torch.tensor(list(known))] = F.embedding_bag(bag, old_rows, offsets, mode="mean")
    single = sum(len(parts) == 1 for parts in known.values())
    return Composed(rows, single, len(known) - single, len(rows) - len(known))
