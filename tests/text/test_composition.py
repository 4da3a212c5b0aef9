"""Rows of a new vocabulary out of the old one's, against loops over characters and merges."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
import tiktoken
import torch
from torch import Tensor

from fractus_text.composition import compose, pieces
from fractus_text.tokenizers import load
from fractus_text.train_tokenizer import train_tokenizer

TEXT = "the quick brown fox jumps over the lazy dog, naïve « 🦊 » " * 8
OTHER = "a lazy cat sleeps while the brown dog jumps; ça, naïve 🦊🦊! " * 8


def trained(text: str, vocabulary: int) -> tiktoken.Encoding:
    return train_tokenizer([text], vocabulary, "trained")


def merged(token: bytes, encoding: tiktoken.Encoding) -> list[int]:
    """Byte-pair encoding as defined: the lowest rank of all neighbours first."""
    ranks = encoding._mergeable_ranks
    parts = [bytes([byte]) for byte in token]
    while pairs := [
        (ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks
    ]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [ranks[part] for part in parts]


def mean(rows: Tensor, parts: Iterable[int]) -> list[float]:
    chosen = [rows[part].tolist() for part in parts]
    return [sum(column) / len(chosen) for column in zip(*chosen, strict=True)]


def draw(encoding: tiktoken.Encoding, seed: int) -> Tensor:
    return torch.randn(encoding.n_vocab, 6, generator=torch.Generator().manual_seed(seed))


def test_rows_from_characters() -> None:
    """What has another character, or a part of one, stays fresh."""
    alphabet = sorted(set(TEXT))
    old, new = load("chars", [TEXT]), trained(OTHER, 290)
    old_rows, fresh = draw(old, 0), draw(new, 1)
    made = compose(old_rows, old, new, fresh)
    counts = {"single": 0, "composed": 0, "fresh": 0}
    for token in range(new.n_vocab - 1):
        text = new.decode_single_token_bytes(token).decode(errors="replace")
        if set(text) <= set(alphabet):
            expected = mean(old_rows, [alphabet.index(character) for character in text])
            counts["single" if len(text) == 1 else "composed"] += 1
        else:
            expected = fresh[token].tolist()
            counts["fresh"] += 1
        assert made.rows[token].tolist() == pytest.approx(expected, abs=1e-6), text
    assert torch.equal(made.rows[new.eot_token], old_rows[old.eot_token])
    counts["single"] += 1
    assert counts == {"single": made.single, "composed": made.composed, "fresh": made.fresh}
    assert min(counts.values()) > 5


def test_rows_from_bytes() -> None:
    old, new = load("bytes"), load("fractus-8k")
    old_rows, fresh = draw(old, 0), draw(new, 1)
    made = compose(old_rows, old, new, fresh)
    assert (made.single, made.composed, made.fresh) == (257, new.n_vocab - 257, 0)
    for token in range(0, new.n_vocab - 1, 37):
        expected = mean(old_rows, new.decode_single_token_bytes(token))
        assert made.rows[token].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("size", [270, 300])
def test_rows_from_merges(size: int) -> None:
    """Also of tokens that are parts of characters, which no text is."""
    old, new = trained(TEXT, size), trained(OTHER, 300)
    old_rows = draw(old, 0)
    made = compose(old_rows, old, new, draw(new, 1))
    assert made.fresh == 0
    for token in range(new.n_vocab - 1):
        text = new.decode_single_token_bytes(token)
        parts = merged(text, old)
        assert b"".join(map(old.decode_single_token_bytes, parts)) == text
        assert made.rows[token].tolist() == pytest.approx(mean(old_rows, parts), abs=1e-6), text


def test_the_same_vocabulary_in_another_order() -> None:
    old, new = load("chars", ["abc"]), load("bytes")
    made = compose(draw(old, 0), old, new, draw(new, 1))
    for text in "abc":
        there, here = (e._mergeable_ranks[text.encode()] for e in (old, new))
        assert torch.equal(made.rows[here], draw(old, 0)[there])
    assert (made.single, made.fresh) == (4, 253)


def test_pieces_are_split_as_the_old_tokenizer_splits_text() -> None:
    """Its pattern keeps a line break and the word after it apart, whatever its merges."""
    old = load("fractus-8k")
    assert pieces(b"\nthe", old) == [*old.encode_ordinary("\n"), *old.encode_ordinary("the")]
    assert pieces(b"<|endoftext|>", old) == old.encode_ordinary("<|endoftext|>")
    assert old.eot_token not in pieces(b"<|endoftext|>", old)


@pytest.mark.parametrize("token", [b"x", b"ax", b"\xc3", b"a\xff"])
def test_what_characters_cannot_say(token: bytes) -> None:
    assert pieces(token, load("chars", ["abc"])) == []


def test_special_tokens_that_the_old_tokenizer_lacks_are_fresh() -> None:
    old, plain = load("bytes"), load("chars", ["ab"])
    new = tiktoken.Encoding(
        "more",
        pat_str=plain._pat_str,
        mergeable_ranks=plain._mergeable_ranks,
        special_tokens={**plain._special_tokens, "<|pause|>": 4},  # and 3 is no token
    )
    fresh = draw(new, 1)
    made = compose(draw(old, 0), old, new, fresh)
    assert torch.equal(made.rows[3:], fresh[3:])
    assert torch.equal(made.rows[2], draw(old, 0)[256])
    assert (made.single, made.composed, made.fresh) == (3, 0, 2)
