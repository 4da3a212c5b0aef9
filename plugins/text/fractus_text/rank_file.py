"""The file of a tokenizer that we trained: one token a line, in base64, and its rank.

That is tiktoken's own format. The split pattern is `PATTERN`, the same for every such file. The
last line is the end-of-text token, so that a file that was cut short is known for one.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import tiktoken

from fractus_core.api import FractusError, write_atomically

END_OF_TEXT = "<|endoftext|>"

_WORD = r" ?[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)?"
_NUMBER = r" ?\p{N}{1,2}"
_INDENT = r"[\r\n]+[ \t]*"
_MARKS = rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+(?:{_INDENT})?"
PATTERN = rf"{_WORD}|{_NUMBER}|{_MARKS}|{_INDENT}|\s+"
"""Splits text before byte pairs are merged; every character is in some piece.

Without look-ahead, so that a regular automaton runs it: three times as fast as the usual patterns,
which overflow the stack on a million spaces. A line break goes with the indentation after it.
"""


def encoding_of(ranks: dict[bytes, int], name: str) -> tiktoken.Encoding:
    """The tokenizer of these byte pairs, whose last token is the end of text."""
    return tiktoken.Encoding(
        name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
    )


def read_rank_file(file: Path) -> tiktoken.Encoding:
    """The tokenizer in `file`, named after it.

    Raises:
        FractusError: the file cannot be read, was cut short, or holds no byte-pair encoding.
    """
    ranks: dict[bytes, int] = {}
    try:
        for number, line in enumerate(file.read_bytes().splitlines()):
            token, rank = line.split()
            if int(rank) != number:
                raise ValueError(f"rank {int(rank)} where {number} belongs")
            ranks[base64.b64decode(token, validate=True)] = number
        if not ranks or ranks.popitem() != (END_OF_TEXT.encode(), number):
            raise ValueError("it does not end with the end-of-text token")
        _check_merges(ranks)
    except (OSError, ValueError, binascii.Error) as error:
        raise FractusError(
            f"damaged tokenizer file {file}: {error}; copy it again or train it again"
        ) from None
    return encoding_of(ranks, file.stem)


def write_rank_file(encoding: tiktoken.Encoding, file: Path) -> None:
    """Write a tokenizer of `encoding_of`; `read_rank_file` gives it back."""
    tokens = sorted(encoding._mergeable_ranks, key=encoding._mergeable_ranks.__getitem__)
    lines = [
        base64.b64encode(token) + f" {rank}\n".encode()
        for rank, token in enumerate([*tokens, END_OF_TEXT.encode()])
    ]
    write_atomically(file, b"".join(lines))


def _check_merges(ranks: dict[bytes, int]) -> None:
    """Raise `ValueError` unless there is each byte, and each other token joins two before it."""
    for number, (token, rank) in enumerate(ranks.items()):
        if rank != number:
            raise ValueError(f"the token of rank {number} is there twice")
        if len(token) > 1 and not any(
            ranks.get(token[:cut], rank) < rank and ranks.get(token[cut:], rank) < rank
            for cut in range(1, len(token))
        ):
            raise ValueError(f"the token of rank {rank} joins no two tokens before it")
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise ValueError("not every byte is a token")
