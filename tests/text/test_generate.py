"""`fractus generate`: the prompt is read whole, and each token costs the same."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from running import ENGINE, TRAINER, contents, one_line, write_corpus
from torch import Tensor

from fractus_core.api import EngineState, Stream, open_run
from fractus_core.cli.main import main
from fractus_text import sampling
from fractus_text.frontend import TextFrontend
from fractus_text.sampling import Sampler

torch.set_num_threads(1)


def train(folder: Path, tokenizer: str) -> Path:
    corpus = write_corpus(folder / "corpus.jsonl", documents=20)
    options = (*ENGINE, *TRAINER, "--cpu.lr", "0.02", "--steps", "40", "--eval-every", "1000")
    text = ("--text.tokenizer", tokenizer, "--text.validation", "0.3")
    out = folder / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        assert main(["run", "--data", str(corpus), "--out", str(out), *text, *options]) == 0
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("bytes"), "bytes")


@pytest.fixture(scope="module")
def chars_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("chars"), "chars")


def generated(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> Any:
    before = contents(run)
    capsys.readouterr()
    assert main(["generate", str(run), "--json", *options]) == 0
    assert contents(run) == before
    return json.loads(capsys.readouterr().out)


def opened(run: Path) -> tuple[Stream, TextFrontend]:
    model = open_run(run).model
    frontend = model.frontends["text"]
    assert isinstance(frontend, TextFrontend)
    return Stream(model.engine, frontend), frontend


def choices(monkeypatch: pytest.MonkeyPatch, tokens: Iterable[int] = ()) -> list[Tensor]:
    """Have these tokens chosen, whatever the logits, which are listed."""
    seen: list[Tensor] = []
    given, choose = iter(tokens), Sampler.choose

    def record(sampler: Sampler, logits: Tensor) -> int:
        seen.append(logits)
        token = next(given, None)
        return choose(sampler, logits) if token is None else token

    monkeypatch.setattr(Sampler, "choose", record)
    return seen


# ----------------------------------------------------------------------------------- the whole text


def test_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = generated(capsys, run, "--prompt", "the quick", "--max-new", "12")
    assert report.keys() == {"prompt", "text", "tokens", "stopped", "tokens_per_second"}
    assert report["prompt"] == "the quick"
    assert report["tokens"] == 12
    assert report["stopped"] == "max_new"
    assert report["tokens_per_second"] > 0
    assert 1 <= len(report["text"]) <= 12


def test_the_text_is_printed_after_the_prompt(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--prompt", "a lazy ", "--max-new", "20", "--seed", "3")
    text = generated(capsys, run, *options)["text"]
    assert main(["generate", str(run), *options]) == 0
    told = capsys.readouterr()
    assert told.out == f"a lazy {text}\n"
    assert told.err == ""


def test_the_seed_decides(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [generated(capsys, run, "--max-new", "30", "--seed", seed)["text"] for seed in "556"]
    assert texts[0] == texts[1] != texts[2]


def test_options_reach_the_sampler(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def record(*args: Any) -> Sampler:
        made.append(Sampler(*args))
        return made[-1]

    monkeypatch.setattr(sampling, "Sampler", record)
    options = ("--temperature", "0.5", "--top-k", "7", "--top-p", "0.9")
    more = ("--repetition-penalty", "1.3", "--seed", "11", "--max-new", "1")
    assert main(["generate", str(run), *options, *more]) == 0
    assert made == [Sampler(0.5, 7, 0.9, 1.3, 11)]


@pytest.mark.parametrize("prompt", ["the quick brown fox ", "", "x"])
def test_it_equals_a_loop_of_ticks(
    run: Path, capsys: pytest.CaptureFixture[str], prompt: str
) -> None:
    """Of the likeliest tokens."""
    stream, frontend = opened(run)
    for token in list(prompt.encode()) or [frontend.encoding.eot_token]:
        logits, _ = stream.tick(torch.tensor([token]))
    expected = []
    while len(expected) < 20:
        token = int(logits[0].argmax())
        if token == frontend.encoding.eot_token:
            break
        expected.append(token)
        logits, _ = stream.tick(torch.tensor([token]))
    report = generated(capsys, run, "--prompt", prompt, "--max-new", "20", "--temperature", "0")
    assert report["text"] == bytes(expected).decode(errors="replace")
    assert report["tokens"] == len(expected)


# ------------------------------------------------------------------------------------- long prompts


def long_prompt(length: int) -> str:
    """That begins with something else than it goes on with."""
    return ("dog " * 20 + "the lazy cats sleep while a fox jumps over " * 100)[:length]


@pytest.mark.parametrize("length", [128, 129, 300])
def test_a_long_prompt_is_read_whole(
    run: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    prompt = long_prompt(length)
    seen = choices(monkeypatch)
    assert main(["generate", str(run), "--prompt", prompt, "--max-new", "1"]) == 0

    def by_ticks(text: str) -> Tensor:
        stream, _ = opened(run)
        for token in text.encode():
            logits, _ = stream.tick(torch.tensor([token]))
        return logits[0]

    # Where two experts are all but equally near, rounding decides which of them a token visits.
    error = (seen[0] - by_ticks(prompt)).abs().max()
    assert error < 5e-3
    assert (seen[0] - by_ticks(prompt[20:])).abs().max() > 4 * error


def size(state: EngineState) -> int:
    tensors = [state.thought, state.position]
    for block in state.blocks:
        tensors += [block.S, block.z, block.clock, block.shift_attention, block.shift_experts]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def test_no_token_costs_more_than_another(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a prompt of 5 tokens or of 5,000: the state is as large, and each reads one vector."""
    read: list[int] = []
    sizes: list[int] = []
    engine_class = type(opened(run)[0].engine)
    tick_chunk_train, tick_vec = engine_class.tick_chunk_train, engine_class.tick_vec

    def watch_chunk(engine: Any, vectors: Tensor, *rest: Any) -> Any:
        read.append(vectors.shape[1])
        return tick_chunk_train(engine, vectors, *rest)

    def watch_tick(engine: Any, vector: Tensor, state: EngineState) -> Any:
        result = tick_vec(engine, vector, state)
        assert vector.shape == state.thought.shape
        read.append(1)
        sizes.append(size(result[2]))
        return result

    monkeypatch.setattr(engine_class, "tick_chunk_train", watch_chunk)
    monkeypatch.setattr(engine_class, "tick_vec", watch_tick)
    for length in (5, 5000):
        read.clear()
        prompt = long_prompt(5) if length == 5 else "fox " * 1250
        assert main(["generate", str(run), "--prompt", prompt, "--max-new", "30"]) == 0
        assert read[0] == length
        assert set(read[1:]) == {1}
        assert len(read) in (30, 31)
    assert len(set(sizes)) == 1


# --------------------------------------------------------------------------------- as it is written


def test_each_piece_is_shown_before_the_next_is_thought_of(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    choices(monkeypatch, b"fox!")
    tick = Stream.tick

    def watch(stream: Stream, observation: Tensor) -> Any:
        events.append("tick")
        return tick(stream, observation)

    class Terminal(io.StringIO):
        encoding = "utf-8"  # type: ignore[assignment]

        def write(self, text: str) -> int:
            if text:  # it must be text, or click takes this for a binary file
                events.append(text)
            return super().write(text)

        def flush(self) -> None:
            events.append("shown")

    monkeypatch.setattr(Stream, "tick", watch)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Terminal())
        assert main(["generate", str(run), "--prompt", "a ", "--max-new", "4"]) == 0
    text = "".join(event for event in events if event not in ("tick", "shown"))
    assert text == "a fox!\n"
    assert events.count("tick") == 3
    for place in [i for i, event in enumerate(events) if event == "tick"]:
        assert events[place - 1] == "shown"
        assert "shown" in events[events.index("a ") : place]
    between = " ".join(event for event in events if event != "shown").split(" tick ")
    assert between[1:] == ["o", "x", "! \n"]


def test_characters_of_several_tokens_are_whole(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What never becomes UTF-8 is shown as U+FFFD, as soon as that is certain."""
    written = "né→🦊".encode() + b"\xff!" + "é".encode()[:1]
    choices(monkeypatch, written)
    report = generated(capsys, run, "--max-new", str(len(written)))
    assert report["text"] == "né→🦊\N{REPLACEMENT CHARACTER}!\N{REPLACEMENT CHARACTER}"
    choices(monkeypatch, written)
    assert main(["generate", str(run), "--max-new", str(len(written))]) == 0
    assert capsys.readouterr().out == report["text"] + "\n"


def test_it_stops_where_the_text_ends(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choices(monkeypatch, [*b"end", 256])
    report = generated(capsys, run)
    assert (report["text"], report["tokens"], report["stopped"]) == ("end", 3, "end")
    choices(monkeypatch, [256])
    report = generated(capsys, run)
    assert (report["text"], report["tokens"], report["stopped"]) == ("", 0, "end")


def test_characters_as_tokens(chars_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = generated(capsys, chars_run, "--prompt", "the dog ", "--max-new", "40")
    assert report["tokens"] == len(report["text"])
    assert set(report["text"]) <= set("abcdefghijklmnopqrstuvwxyz ")


# ------------------------------------------------------------------------------------ what is wrong


def refused(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    capsys.readouterr()
    assert main(["generate", *args]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "--debug" not in told.err, "an error that nobody foresaw"
    return one_line(told.err)


def test_a_character_that_was_never_seen(
    chars_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(capsys, 1, str(chars_run), "--prompt", "the Dog")
    assert "has no token for 'D' (U+0044)" in line


VALUES = [
    ("--max-new", "0"),
    ("--temperature", "-1"),
    ("--temperature", "101"),
    ("--temperature", "nan"),
    ("--top-k", "-1"),
    ("--top-p", "0"),
    ("--top-p", "1.1"),
    ("--top-p", "nan"),
    ("--repetition-penalty", "0.5"),
    ("--repetition-penalty", "nan"),
    ("--seed", "-1"),
    ("--seed", str(2**64)),
]


@pytest.mark.parametrize(("option", "value"), VALUES)
def test_what_is_no_value(
    run: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    line = refused(capsys, 2, str(run), option, value)
    assert option in line
    assert value in line


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", "1e-45"), ("--temperature", "100"), ("--top-k", "9999999"),
     ("--top-p", "1e-9"), ("--repetition-penalty", "100"), ("--seed", str(2**63 - 1))],
)  # fmt: skip
def test_what_is_just_a_value(
    run: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    assert generated(capsys, run, "--max-new", "3", option, value)["tokens"] >= 0


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, 1, str(tmp_path))
    assert line == (
        f"fractus: error: {tmp_path} is no run and no brain: it has neither run.json nor brain.json"
    )
    assert "RUN" in refused(capsys, 2)
