"""`fractus run --grow-from`: a new run that begins with the weights of another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from growing_runs import config, refusal, restored, train
from running import OFTEN, TEXT, TRAINER, kill_after_step, left, resume

from fractus_core.cli.main import main

STEPS = ("--steps", "4", *OFTEN)


def warm_start(corpus: Path, origin: Path, out: Path, *options: str) -> list[str]:
    given = ["--data", str(corpus), "--grow-from", str(origin), "--out", str(out)]
    return ["run", *given, *TEXT, *TRAINER, *STEPS, *options]


@pytest.fixture
def trained(corpus: Path, tmp_path: Path) -> Path:
    train(corpus, tmp_path / "trained")
    return tmp_path / "trained"


def test_weights_alone_are_taken(corpus: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--set", "n_layers=2", "--cpu.optimizer", "sgd", "--cpu.lr", "1e-6")
    kill_after_step(2, warm_start(corpus, trained, out, *options))
    run, was = restored(out), restored(trained)
    assert run.spent.steps == 0
    assert torch.equal(
        run.model.engine.state_dict()["blocks.0.attention.in_proj.weight"],
        was.model.engine.state_dict()["blocks.0.attention.in_proj.weight"],
    )
    assert run.lanes[0].state.position.count_nonzero() == 0
    assert run.lanes[0].source.cursor() == {"epoch": 0, "chunk": 0}
    assert run.trainer.options["optimizer"] == "sgd"
    [entry] = config(out)["lineage"]
    assert entry["grown_from"] == str(trained)
    assert entry["changes"] == {"n_layers": [1, 2]}
    assert main(resume(out)) == 0
    # The rate is so small that the loss is the trained one's.
    loss = [line["loss"] for line in left(out).values["metrics"] if line["kind"] == "train"]
    assert abs(loss[0] - left(trained).values["metrics"][-2]["loss"]) < 0.3


def test_without_sizes_it_stays_as_large(corpus: Path, trained: Path, tmp_path: Path) -> None:
    assert main(warm_start(corpus, trained, tmp_path / "out")) == 0
    assert config(tmp_path / "out")["engine"] == config(trained)["engine"]


def test_another_frontend_starts_fresh(
    corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractus_vision.glyphs.HELD_OUT", 64)
    out = tmp_path / "out"
    args = ["run", "--grow-from", str(trained), "--frontend", "vision", "--out", str(out), *TRAINER]
    assert main([*args, "--steps", "2", "--vision.batch_size", "16", "--vision.size", "16"]) == 0
    assert [f["name"] for f in config(out)["frontends"]] == ["vision"]


def test_refused(
    corpus: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def refused(*options: str, code: int = 1) -> str:
        line = refusal(capsys, warm_start(corpus, trained, out, *options), code)
        assert not out.exists()
        return line

    assert "front-end 'text' is another" in refused("--text.tokenizer", "fractus-8k")
    assert "cannot shrink" in refused("--set", "d_ff=64")
    assert "cannot go with --grow-from" in refused("--brain", str(tmp_path / "b"), code=2)
    assert "is no run" in refusal(capsys, warm_start(corpus, tmp_path / "no", out))
    assert "--grow-from" in refusal(capsys, resume(trained, "--grow-from", str(trained)), 2)
