"""`fractus tokenizer`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fractus_core.api import FractusError
from fractus_text.commands import tokenizer
from fractus_text.encoding import encode_text
from fractus_text.tokenizers import load


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.jsonl"
    texts = [f"the number {number} is what the text says\n" * 3 for number in range(100)]
    file.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    return file


def train(corpus: Path, output: Path, *options: str) -> Result:
    arguments = ["train", str(corpus), "--column", "body", "-o", str(output), *options]
    return CliRunner().invoke(tokenizer, arguments)


def test_train_reports_what_it_made(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "small.tiktoken"
    result = train(corpus, output, "--vocab", "300", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    encoding = load(str(output))
    texts = [json.loads(line)["body"] for line in corpus.read_text().splitlines()]
    tokens = sum(len(encode_text(encoding, text)) for text in texts)
    size = sum(map(len, texts))
    assert report["vocab"] == encoding.n_vocab == 300
    assert report["bytes"] == size
    assert report["bytes_per_token"] == pytest.approx(size / tokens, abs=1e-4)
    assert report["seconds"] > 0


def test_an_existing_file_is_kept_unless_forced(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "small.tiktoken"
    output.write_text("mine")
    result = train(corpus, output, "--vocab", "300")
    assert isinstance(result.exception, FractusError)
    assert "--force" in str(result.exception)
    assert output.read_text() == "mine"
    assert train(corpus, output, "--vocab", "300", "--force").exit_code == 0
    assert load(str(output)).n_vocab == 300


def test_vocabulary_below_the_bytes(corpus: Path, tmp_path: Path) -> None:
    result = train(corpus, tmp_path / "small.tiktoken", "--vocab", "256")
    assert result.exit_code == 2
    assert "257" in result.stderr


def test_importing_the_commands_is_light() -> None:
    script = "import sys, fractus_text.commands; print(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "click" in names
    assert not {"torch", "numpy", "tiktoken", "rustbpe", "datasets"} & set(names)
