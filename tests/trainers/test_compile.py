"""Compiled blocks train as plain ones do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from running import ENGINE, TEXT, TRAINER, write_corpus

from fractus_core.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_the_losses_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And evaluations, of other shapes, compile nothing."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    losses = {}
    for flag in ("--cpu.compile", "--no-cpu.compile"):
        out = tmp_path / flag
        size = (*TEXT, *ENGINE, *TRAINER, "--steps", "6", "--log-every", "1")
        assert main(["run", "--data", str(corpus), "--out", str(out), *size, flag]) == 0
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses[flag] = [line["loss"] for line in lines if line["kind"] == "train"]
        losses[flag].append(lines[-1]["evaluation"]["loss_warm"])
        assert ("compile_seconds" in capsys.readouterr().err) == (flag == "--cpu.compile")
    compiled, plain = losses.values()
    assert compiled == pytest.approx(plain, rel=1e-4)


def test_without_a_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    size = (*TEXT, *ENGINE, *TRAINER, "--steps", "1", "--cpu.compile")
    assert main(["run", "--data", str(corpus), "--out", str(tmp_path / "run"), *size]) == 1
    assert "C++ compiler" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
