"""Tokenizers by name, and the JSON that rebuilds one. Each is a `tiktoken.Encoding`."""

from __future__ import annotations

import base64
import difflib
import queue
import threading
from collections.abc import Iterable
from pathlib import Path

import tiktoken

from fractus_core.api import FractusError, Json
from fractus_text.rank_file import END_OF_TEXT, read_rank_file

DEFAULT = "fractus-8k"
BYTES = "bytes"
CHARS = "chars"
_SHIPPED = Path(__file__).with_name("data") / "fractus-8k.tiktoken"
"""Made under CPython 3.11.7 by `fractus tokenizer train python-docs -o fractus-8k.tiktoken`."""
_DOWNLOAD_SECONDS = 20


def load(name: str, corpus: Iterable[str] | None = None) -> tiktoken.Encoding:
    """The tokenizer called `name`.

    Args:
        name: `fractus-8k`, ours for English and Python; `bytes`, the 256 bytes; `chars`, the
            characters in `corpus`; a name that tiktoken knows, such as `gpt2`; or a file that
            `fractus tokenizer train` wrote. Each has the token `<|endoftext|>`.
        corpus: Text, needed for `chars`.

    Raises:
        FractusError: the name is unknown, the file is damaged, or tiktoken cannot download it.
    """
    if name == DEFAULT:
        return read_rank_file(_SHIPPED)
    if name == BYTES:
        return _bytes()
    if name == CHARS:
        if corpus is None:
            raise FractusError(f"tokenizer {CHARS!r} is made from a corpus; none was given")
        return _chars(corpus)
    if name in tiktoken.list_encoding_names():
        return _well_known(name)
    if Path(name).is_file():
        return read_rank_file(Path(name))
    names = [DEFAULT, BYTES, CHARS, *tiktoken.list_encoding_names()]
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(names)}, or a file"
    raise FractusError(f"there is no tokenizer and no file {name!r}; {hint}")


def to_schema(encoding: tiktoken.Encoding) -> Json:
    """JSON from which `from_schema` makes the same tokenizer.

    One that tiktoken knows is stored by name, any other complete.
    """
    if tiktoken.registry.ENCODINGS.get(encoding.name) is encoding:
        return {"name": encoding.name}
    ranks = encoding._mergeable_ranks
    tokens = sorted(ranks, key=ranks.__getitem__)
    assert [ranks[token] for token in tokens] == list(range(len(tokens)))
    return {
        "name": encoding.name,
        "pattern": encoding._pat_str,
        "special": dict(encoding._special_tokens),
        # One string, because a list would be thousands of lines of an indented `run.json`.
        "tokens": " ".join(base64.b64encode(token).decode() for token in tokens),
    }


def from_schema(schema: Json) -> tiktoken.Encoding:
    """The tokenizer that `to_schema` described.

    Raises:
        FractusError: the schema is damaged, or tiktoken cannot download a tokenizer that it knows.
    """
    try:
        if "tokens" not in schema:
            return _well_known(schema["name"])
        tokens = [base64.b64decode(token, validate=True) for token in schema["tokens"].split(" ")]
        return tiktoken.Encoding(
            schema["name"],
            pat_str=schema["pattern"],
            mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
            special_tokens=schema["special"],
            explicit_n_vocab=len(tokens) + len(schema["special"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise FractusError(f"damaged tokenizer schema: {error!r}; restore the file") from None


def same(one: tiktoken.Encoding, other: tiktoken.Encoding) -> bool:
    """Whether they give the same tokens, whatever they are called."""
    return (
        one._mergeable_ranks == other._mergeable_ranks
        and one._special_tokens == other._special_tokens
        and one._pat_str == other._pat_str
    )


def _bytes() -> tiktoken.Encoding:
    return tiktoken.Encoding(
        BYTES,
        pat_str=r"(?s:.){1,64}",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={END_OF_TEXT: 256},
    )


def _chars(corpus: Iterable[str]) -> tiktoken.Encoding:
    """Each character one token. The pattern finds no others, so others are never merged.

    tiktoken by itself leaves unknown characters out; `encode_text` refuses them.
    """
    characters = sorted(set().union(*corpus))
    if not characters:
        raise FractusError(f"tokenizer {CHARS!r} needs a corpus with text in it")
    return tiktoken.Encoding(
        CHARS,
        pat_str="[" + "".join(rf"\x{{{ord(character):X}}}" for character in characters) + "]",
        mergeable_ranks={character.encode(): rank for rank, character in enumerate(characters)},
        special_tokens={END_OF_TEXT: len(characters)},
    )


def _well_known(name: str) -> tiktoken.Encoding:
    # tiktoken waits for a download without limit, so it is given a thread that can be left behind.
    answers: queue.SimpleQueue[tiktoken.Encoding | Exception] = queue.SimpleQueue()

    def get() -> None:
        try:
            answers.put(tiktoken.get_encoding(name))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=get, daemon=True).start()
    try:
        answer = answers.get(timeout=_DOWNLOAD_SECONDS)
    except queue.Empty:
        answer = TimeoutError()
    if isinstance(answer, Exception):
        raise FractusError(
            f"tiktoken cannot get tokenizer {name!r} ({type(answer).__name__}); connect to the "
            f"network, set TIKTOKEN_CACHE_DIR to a folder that holds it, or use {DEFAULT}"
        )
    if END_OF_TEXT not in answer.special_tokens_set:
        raise FractusError(f"tokenizer {name!r} has no {END_OF_TEXT} token; use {DEFAULT}")
    return answer
