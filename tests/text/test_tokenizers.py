"""Every tokenizer gives back the text it was given, and can be rebuilt from JSON."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from fractus_core.api import FractusError
from fractus_text import tokenizers
from fractus_text.corpus import documents
from fractus_text.encoding import encode_text, token_bytes
from fractus_text.rank_file import read_rank_file, write_rank_file
from fractus_text.tokenizers import from_schema, load, to_schema
from fractus_text.train_tokenizer import train_tokenizer

FRACTUS_8K, BYTES = load("fractus-8k"), load("bytes")
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def through_json(encoding: tiktoken.Encoding) -> tiktoken.Encoding:
    return from_schema(json.loads(json.dumps(to_schema(encoding))))


@pytest.mark.parametrize("encoding", [FRACTUS_8K, BYTES], ids=lambda e: e.name)
@given(text=TEXT)
def test_any_text_round_trips(encoding: tiktoken.Encoding, text: str) -> None:
    assert encoding.decode(encode_text(encoding, text).tolist()) == text


@given(text=TEXT)
def test_bytes_are_the_utf8(text: str) -> None:
    assert encode_text(BYTES, text).tolist() == list(text.encode())


@given(text=TEXT.filter(bool))
def test_chars_gives_each_character_one_token(text: str) -> None:
    encoding = load("chars", [text])
    tokens = encode_text(encoding, text).tolist()
    assert [encoding.decode([token]) for token in tokens] == list(text)
    assert encoding.n_vocab == len(set(text)) + 1


def test_sizes_of_the_vocabularies(no_network: None) -> None:
    assert (load("fractus-8k").n_vocab, load("fractus-8k").eot_token) == (8192, 8191)
    assert (load("bytes").n_vocab, load("bytes").eot_token) == (257, 256)
    assert load("chars", ["ab", "é"]).n_vocab == 4


def test_tiny_shakespeare_has_65_characters(shared_data: Path) -> None:
    corpus = documents(str(shared_data / "text" / "tinyshakespeare.txt"))
    assert load("chars", corpus.texts()).n_vocab == 66


def test_gpt2_is_the_published_one(tiktoken_cache: None) -> None:
    encoding = load("gpt2")
    assert encode_text(encoding, "Hello world").tolist() == [15496, 995]
    assert to_schema(encoding) == {"name": "gpt2"}
    assert through_json(encoding) is encoding


def test_schema_rebuilds_the_tokenizer() -> None:
    text = "Schönes Wetter, said the Mock Turtle.\n    return 42\n"
    for encoding in (FRACTUS_8K, BYTES, load("chars", [text])):
        rebuilt = through_json(encoding)
        assert (rebuilt.name, rebuilt.n_vocab) == (encoding.name, encoding.n_vocab)
        assert encode_text(rebuilt, text).tolist() == encode_text(encoding, text).tolist()
        assert to_schema(rebuilt) == to_schema(encoding)


@pytest.mark.parametrize(
    "change",
    [{"tokens": "YQ== ?"}, {"tokens": "YQ== YQ=="}, {"tokens": 3}, {"pattern": None}],
    ids=str,
)
def test_damaged_schema(change: dict[str, object]) -> None:
    with pytest.raises(FractusError, match="damaged tokenizer schema"):
        from_schema({**to_schema(load("chars", ["ab"])), **change})


def test_special_tokens_in_text_are_text() -> None:
    tokens = encode_text(FRACTUS_8K, "<|endoftext|>")
    assert FRACTUS_8K.eot_token not in tokens
    assert len(tokens) > 1


def test_unknown_character_is_named() -> None:
    with pytest.raises(FractusError, match=r"'chars' has no token for 'é' \(U\+00E9\)"):
        encode_text(load("chars", ["abc"]), "abécd")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(FractusError, match="character 2 of the text"):
        encode_text(BYTES, "ab\ud800")


@pytest.mark.parametrize("name", ["fractus-8k", "gpt2", "bytes"])
def test_a_million_spaces(name: str, tiktoken_cache: None) -> None:
    encoding, text = load(name), " " * 1_000_000 + "a"
    assert encoding.decode(encode_text(encoding, text).tolist()) == text


def test_token_bytes(tiktoken_cache: None) -> None:
    for encoding in (load("gpt2"), FRACTUS_8K, load("chars", ["aé😀"])):
        sizes = token_bytes(encoding)
        assert sizes.shape == (encoding.n_vocab,)
        assert sizes[encoding.eot_token] == 0
        assert sizes[encode_text(encoding, "aé😀aa")].sum() == len("aé😀aa".encode())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gtp2", "did you mean gpt2"),
        ("fractus8k", "did you mean fractus-8k"),
        ("zzz", "use one of fractus-8k, bytes, chars, gpt2"),
    ],
)
def test_unknown_name(name: str, says: str) -> None:
    with pytest.raises(FractusError, match=says):
        load(name)


def test_chars_without_corpus() -> None:
    with pytest.raises(FractusError, match="made from a corpus"):
        load("chars")
    with pytest.raises(FractusError, match="text in it"):
        load("chars", [""])


def test_no_network(no_network: None) -> None:
    with pytest.raises(FractusError, match=r"TIKTOKEN_CACHE_DIR.*fractus-8k") as caught:
        load("p50k_base")
    assert "\n" not in str(caught.value)


def test_a_download_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "_DOWNLOAD_SECONDS", 0.05)
    done = threading.Event()
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: done.wait())
    start = time.monotonic()
    with pytest.raises(FractusError, match="TimeoutError"):
        load("p50k_base")
    assert time.monotonic() - start < 5
    done.set()


def test_every_tokenizer_needs_an_end_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = tiktoken.Encoding(
        "endless", pat_str=".", mergeable_ranks={b"a": 0}, special_tokens={}
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: endless)
    with pytest.raises(FractusError, match=r"'p50k_base' has no .* token"):
        load("p50k_base")


def test_trained_tokenizer_comes_back_from_its_file(tmp_path: Path) -> None:
    texts = ["the cat sat on the mat\n" * 20, "a dog and a frog on a log\n" * 20]
    encoding = train_tokenizer(texts, 280, "small")
    write_rank_file(encoding, tmp_path / "small.tiktoken")
    again = load(str(tmp_path / "small.tiktoken"))
    assert (again.n_vocab, again.name) == (280, "small")
    assert to_schema(again) == to_schema(encoding)
    assert len(encode_text(again, texts[0])) < len(texts[0]) / 2


def test_too_little_text_for_the_vocabulary() -> None:
    with pytest.raises(FractusError, match="gives 258 tokens, not 1000"):
        train_tokenizer(["ab"], 1000, "small")


def lines(content: bytes) -> list[bytes]:
    return content.splitlines(keepends=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: b"".join(lines(good)[:-1]),
        lambda good: b"".join(lines(good)[:5000]),
        lambda good: good[:40_000],
        lambda good: b"".join(lines(good)[:300] + lines(good)[301:]),
        lambda good: good.replace(b"IHJldHVybg==", b"IHJldHVzbg=="),
        lambda good: good.replace(b"IHJldHVybg==", b"IHJldHV"),
        lambda good: good.replace(b"YQ== 97\n", b"Yg== 97\n"),
        lambda good: bytes(len(good)),
    ],
    ids=["empty", "no end", "half", "mid-line", "hole", "altered", "base64", "twice", "zeros"],
)
def test_damaged_tokenizer_file(damage: object, tmp_path: Path) -> None:
    good = tokenizers._SHIPPED.read_bytes()
    bad = damage(good)  # type: ignore[operator]
    assert bad != good
    file = tmp_path / "bad.tiktoken"
    file.write_bytes(bad)
    with pytest.raises(FractusError, match=r"damaged tokenizer file .*bad\.tiktoken") as caught:
        read_rank_file(file)
    assert "\n" not in str(caught.value)


def test_how_well_the_shipped_tokenizer_compresses() -> None:
    size = count = 0
    for text in documents("python-docs").texts():
        size += len(text.encode())
        count += len(encode_text(FRACTUS_8K, text))
    assert size / count > 4
