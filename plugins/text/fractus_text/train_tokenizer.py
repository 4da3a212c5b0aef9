"""Training a byte-pair tokenizer."""

from __future__ import annotations

from collections.abc import Iterable

import rustbpe
import tiktoken

from fractus_core.api import FractusError
from fractus_text.rank_file import PATTERN, encoding_of

_BUFFERED = 64
"""Texts that rustbpe takes at once; its own default, 8,192, holds gigabytes of long ones."""


def train_tokenizer(texts: Iterable[str], vocabulary: int, name: str) -> tiktoken.Encoding:
    """Merge the most frequent byte pairs of `texts` until there are `vocabulary` tokens.

    The 256 bytes and the end-of-text token are among them.

    Raises:
        FractusError: the texts hold too few pairs for so large a vocabulary.
    """
    assert vocabulary > 256, vocabulary
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(iter(texts), vocabulary - 1, _BUFFERED, PATTERN)
    ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
    if len(ranks) < vocabulary - 1:
        raise FractusError(
            f"the corpus gives {len(ranks) + 1} tokens, not {vocabulary}; "
            "give more text or a smaller vocabulary"
        )
    return encoding_of(ranks, name)
