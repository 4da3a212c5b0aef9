"""`fractus eval`: a finished run's figures again, and those on other data."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from running import contents, kill_after_step, one_line, start, write_corpus

from fractus_core.api import open_run
from fractus_core.cli.main import main
from fractus_core.runs import evaluation
from fractus_core.runs.evaluation import CHUNK, COLD_LENGTH
from fractus_text.frontend import TextFrontend

torch.set_num_threads(1)


ROWS = 4


@pytest.fixture(autouse=True, scope="module")
def fewer_rows() -> Iterator[None]:
    """So that little data has rows longer than a cold stream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "ROWS", ROWS)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with 6,000 letters held back."""
    folder = tmp_path_factory.mktemp("made")
    corpus = write_corpus(folder / "corpus.jsonl", documents=8, length=1500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        assert main(start(corpus, folder / "run", "--steps", "20", "--eval-every", "1000")) == 0
    return folder / "run"


def evaluated(capsys: pytest.CaptureFixture[str], run: Path, *options: str) -> Any:
    before = contents(run)
    capsys.readouterr()
    assert main(["eval", str(run), *options, "--json"]) == 0
    told = capsys.readouterr()
    assert contents(run) == before
    return json.loads(told.out)


def test_it_is_what_the_run_ended_with(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, made)
    assert found == json.loads((made / "summary.json").read_text())["frontends"]
    assert found["text"].keys() == {
        *("loss_warm", "loss_cold", "loss_uniform", "bits_per_byte", "tokens", "routing"),
    }
    assert found["text"]["loss_uniform"] == math.log(257)
    assert found["text"]["loss_warm"] != found["text"]["loss_cold"]


def test_in_words(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = evaluated(capsys, made)["text"]
    assert main(["eval", str(made)]) == 0
    told = capsys.readouterr().out
    for part in (
        f"text, {figures['tokens']:,} tokens",
        f"{figures['loss_warm']:.4f}",
        f"{figures['loss_cold']:.4f}",
        f"{figures['bits_per_byte']:.4f}",
        f"entropy {figures['routing']['blocks'][0]['entropy']:.3f}",
    ):
        assert part in told


def test_all_of_other_data(tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None of it is held back; against one long stream after the other."""
    other = tmp_path / "other.txt"
    other.write_text("no cats jump while the dog sleeps\n" * 140)
    found = evaluated(capsys, made, "--data", str(other))["text"]

    tokens = torch.tensor([*other.read_bytes(), 256])
    length = (len(tokens) - 1) // (ROWS * CHUNK) * CHUNK
    assert length > COLD_LENGTH
    assert found["tokens"] == ROWS * length
    assert found["tokens"] > len(tokens) - 1 - ROWS * CHUNK
    model = open_run(made).model
    frontend = model.frontends["text"]
    assert isinstance(frontend, TextFrontend)
    losses: dict[str, list[float]] = {"loss_warm": [], "loss_cold": []}
    for row in range(ROWS):
        observed = tokens[row * length : (row + 1) * length]
        targets = tokens[row * length + 1 : (row + 1) * length + 1]
        for name, piece in (("loss_warm", length), ("loss_cold", COLD_LENGTH)):
            for begin in range(0, length, piece):
                with torch.no_grad():
                    hidden, _ = model.engine.tick_chunk(
                        frontend.embed(observed[None, begin : begin + piece]),
                        model.engine.initial_state(1),
                    )
                    logits = frontend.answer(hidden[0])
                loss = F.cross_entropy(logits, targets[begin : begin + piece], reduction="none")
                losses[name] += loss.tolist()
    for name, values in losses.items():
        assert len(values) == found["tokens"]
        assert found[name] == pytest.approx(sum(values) / len(values), rel=1e-4)
    # Each token but the last one is a byte.
    assert found["bits_per_byte"] == pytest.approx(found["loss_warm"] / math.log(2), rel=1e-3)


def test_so_many_tokens(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chunk = ROWS * CHUNK
    assert evaluated(capsys, made, "--tokens", "1")["text"]["tokens"] == chunk
    assert evaluated(capsys, made, "--tokens", str(chunk + 1))["text"]["tokens"] == 2 * chunk


def test_the_data_may_be_gone_if_other_is_given(
    tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(made, run)
    corpus = made.parent / "corpus.jsonl"
    hidden = corpus.rename(corpus.with_suffix(".away"))
    try:
        assert main(["eval", str(run)]) == 1
        assert str(corpus) in one_line(capsys.readouterr().err)
        other = write_corpus(tmp_path / "other.jsonl", seed=3)
        assert evaluated(capsys, run, "--data", str(other))["text"]["tokens"] > 0
    finally:
        hidden.rename(corpus)


# ---------------------------------------------------------------------------------- what is refused


def refused(capsys: pytest.CaptureFixture[str], code: int, *args: str) -> str:
    capsys.readouterr()
    assert main(["eval", *args]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "--debug" not in told.err
    return one_line(told.err)


def test_errors(tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, before = str(made), contents(made)
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("short")
    gone = str(tmp_path / "gone")
    assert refused(capsys, 1, gone) == (
        f"fractus: error: {gone} is no run and no brain: it has neither run.json nor brain.json"
    )
    assert "is no run" in refused(capsys, 1, str(tmp_path / "empty"))
    assert "is no run" in refused(capsys, 1, str(made / "run.json"))
    assert refused(capsys, 1, run, "--frontend", "vision").endswith("it has text")
    assert "no such data" in refused(capsys, 1, run, "--data", gone)
    assert "give more text" in refused(capsys, 1, run, "--data", str(tmp_path / "short.txt"))
    assert "--tokens" in refused(capsys, 2, run, "--tokens", "0")
    assert "RUN" in refused(capsys, 2)
    assert "--jsn" in refused(capsys, 2, run, "--jsn")
    assert contents(made) == before


def test_a_run_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a run"
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    kill_after_step(1, start(corpus, out, "--steps", "9"))
    line = refused(capsys, 1, str(out))
    assert line == (f"fractus: error: {out} has no checkpoint yet: fractus run --resume '{out}'")


def test_changed_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    assert main(start(corpus, out, "--steps", "1")) == 0
    write_corpus(corpus, seed=1)
    line = refused(capsys, 1, str(out))
    assert f"the validation data '{corpus}' of front-end 'text' has changed" in line
