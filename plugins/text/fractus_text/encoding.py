"""Text to tokens: a string, or a corpus in parallel."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import tiktoken

from fractus_core.api import FractusError
from fractus_text.readers import Piece

Tokens = npt.NDArray[np.uint32]

_GROUP = 1 << 20
"""Characters that one task encodes; many short documents go together."""
_LONGEST = 1 << 18
"""Characters given to tiktoken at once: a pattern with look-ahead fails on very long runs."""


@functools.lru_cache(maxsize=8)
def token_bytes(encoding: tiktoken.Encoding) -> npt.NDArray[np.int32]:
    """(V,) the UTF-8 bytes of each token; 0 for special tokens and for numbers without token."""
    sizes = np.zeros(encoding.n_vocab, np.int32)
    for token, rank in encoding._mergeable_ranks.items():
        sizes[rank] = len(token)
    sizes.setflags(write=False)
    return sizes


def encode_text(encoding: tiktoken.Encoding, text: str) -> Tokens:
    """The tokens of `text`. What looks like a special token in it is ordinary text.

    Raises:
        FractusError: the text has a character that the tokenizer has no token for, or that is
            half of a surrogate pair.
    """
    return _encode(encoding, text)[0]


def encode_pieces(
    pieces: Iterable[Piece], encoding: tiktoken.Encoding
) -> Iterator[tuple[Piece, Tokens, bytes]]:
    """Each piece with its tokens and its UTF-8, in order, encoded on all cores."""
    # tiktoken works without the interpreter lock: on 2 cores, threads encode 32 MB/s with gpt2,
    # processes 29 and one thread 17.
    workers = os.cpu_count() or 1
    tasks: deque[Future[list[tuple[Piece, Tokens, bytes]]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for group in _groups(pieces):
            tasks.append(pool.submit(_encode_group, encoding, group))
            if len(tasks) > 2 * workers:
                yield from tasks.popleft().result()
        while tasks:
            yield from tasks.popleft().result()


def _groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= _GROUP:
            yield group
            group, size = [], 0
    yield group


def _encode_group(
    encoding: tiktoken.Encoding, group: list[Piece]
) -> list[tuple[Piece, Tokens, bytes]]:
    return [(piece, *_encode(encoding, piece.text)) for piece in group]


def _encode(encoding: tiktoken.Encoding, text: str) -> tuple[Tokens, bytes]:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise FractusError(
            f"character {error.start} of the text is half of a surrogate pair; leave it out"
        ) from None
    parts = [encoding.encode_to_numpy(part, disallowed_special=()) for part in _short_parts(text)]
    tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if token_bytes(encoding).take(tokens).sum() != len(data):
        character = next(c for c in text if c.encode() not in encoding._mergeable_ranks)
        raise FractusError(
            f"tokenizer {encoding.name!r} has no token for {character!r} (U+{ord(character):04X}); "
            "leave it out or use a tokenizer that knows every byte, such as fractus-8k"
        )
    return tokens, data


def _short_parts(text: str) -> Iterator[str]:
    """The text in parts that end with a line, if they can."""
    start = 0
    while len(text) - start > _LONGEST:
        end = text.rfind("\n", start, start + _LONGEST) + 1 or start + _LONGEST
        yield text[start:end]
        start = end
    yield text[start:]
