"""`fractus grow`: a complete run that goes on where the old one is."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from growing_runs import EXACT, config, goes_on, grow, refusal, restored, train
from running import TOKENS, contents, kill_after_step, left, newest, resume, start

from fractus_core.cli.main import main
from fractus_core.runs.derive import Origin


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is not changed by any test; its data lies beside it."""
    from running import write_corpus

    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        train(write_corpus(folder / "corpus.jsonl"), folder / "run")
    return folder / "run"


def test_streams_go_on_with_the_same_logits(trained: Path, tmp_path: Path) -> None:
    assert main(grow(trained, tmp_path / "grown", *EXACT)) == 0
    before, after = goes_on(trained), goes_on(tmp_path / "grown")
    assert (before - after).abs().max() < 1e-4
    state = restored(tmp_path / "grown").lanes[0].state
    assert (state.position > 0).any()
    assert state.thought.count_nonzero() > 0


def test_the_grown_run_goes_on(trained: Path, tmp_path: Path) -> None:
    """Counting from zero, on the data that comes next; a resumed one gives the same."""
    out = tmp_path / "grown"
    assert main(grow(trained, out, *EXACT)) == 0
    assert newest(out) == "0"
    cursor = left(trained).values["info"]["cursors"]["text"]
    assert Origin.read(out).checkpoint.info["cursors"]["text"] == cursor
    again = tmp_path / "again"
    assert main(grow(trained, again, *EXACT)) == 0
    assert main(resume(out, "--steps", "9")) == 0
    found = left(out)
    assert found.steps == 9
    assert newest(out) == str(9 * TOKENS)
    kill_after_step(4, resume(again, "--steps", "9"))
    assert main(resume(again)) == 0
    other = left(again)
    for name, tensor in found.tensors.items():
        assert torch.equal(other.tensors[name], tensor), name
    first = found.values["metrics"][0]
    last = left(trained).values["metrics"][-2]
    assert last["kind"] == first["kind"] == "train"
    assert abs(first["loss"] - last["loss"]) < 0.3
    assert main(["eval", str(out)]) == 0


def test_lineage(trained: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(grow(trained, first, "--set", "n_layers=2")) == 0
    assert main(resume(first, "--steps", "2")) == 0
    assert main(grow(first, second, "--set", "d_ff=136")) == 0
    older, newer = config(second)["lineage"]
    assert older["grown_from"] == str(trained)
    assert older["changes"] == {"n_layers": [1, 2]}
    assert older["spent"]["steps"] == 12
    assert older["spent"]["tokens"] == 12 * TOKENS
    assert newer["grown_from"] == str(first)
    assert newer["changes"] == {"d_ff": [128, 136]}
    assert newer["spent"]["steps"] == 2
    assert config(second)["engine"]["n_layers"] == 2
    assert config(trained)["lineage"] == []
    same = ("trainer", "frontends", "seed", "shard", "eval_every")
    assert all(config(second)[key] == config(trained)[key] for key in same)


def test_what_is_printed(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(grow(trained, tmp_path / "a", "--set", "n_experts=8", "--set", "n_layers=2")) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "experts: n_experts 4 -> 8"
    assert out[1].startswith("  text: logits differ by ")
    assert out[2] == "depth: n_layers 1 -> 2"
    assert out[3].startswith("  text: logits differ by 0 on average, KL 0 nats, loss ")
    assert "the optimizer goes on" in out[4]
    assert main(grow(trained, tmp_path / "b", "--set", "n_experts=8", "--json")) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    [step] = told["steps"]
    assert step["changes"] == {"n_experts": [4, 8]}
    drift = step["drift"]["text"]
    assert 0 < drift["logits"] < 1
    assert 0 <= drift["kl"] < 0.1
    assert told["optimizer"] is True


def test_a_preset_and_settings(trained: Path, tmp_path: Path) -> None:
    """What --set says counts, as for `fractus run`."""
    options = ("--to", "stage0", "--set", "d_model=48", "--set", "n_heads=3")
    assert main(grow(trained, tmp_path / "grown", *options)) == 0
    engine = config(tmp_path / "grown")["engine"]
    assert (engine["d_model"], engine["n_heads"], engine["n_layers"]) == (48, 3, 2)
    assert engine["thought_stride"] == 24  # the run's own, not the default


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd", "rmsprop"])
def test_moments_go_on(corpus: Path, tmp_path: Path, optimizer: str) -> None:
    out = tmp_path / "grown"
    train(corpus, tmp_path / "run", "--cpu.optimizer", optimizer, "--cpu.lr", "0.002")
    assert main(grow(tmp_path / "run", out, *EXACT)) == 0
    old, new = (Origin.read(path).checkpoint.trees["trainer"] for path in (tmp_path / "run", out))
    assert new["steps"] == old["steps"] == 12
    assert torch.equal(new["generator"], old["generator"])
    kept = {
        (round(float(t.double().abs().sum()), 9), tuple(t.shape))
        for part in new["optimizers"]
        for state in part["state"].values()
        for t in state.values()
        if t.dim()
    }
    embedding = [
        t
        for part in old["optimizers"]
        for state in part["state"].values()
        for t in state.values()
        if tuple(t.shape) == (257, 32)
    ]
    assert embedding
    for t in embedding:  # twice as many, half (or, of squares, a quarter) each
        total = float(t.double().abs().sum())
        assert {(round(total * f, 9), (257, 64)) for f in (1, 0.5)} & kept
    assert main(resume(out, "--steps", "3")) == 0


def test_new_channels_have_no_moments_but_their_sources(corpus: Path, tmp_path: Path) -> None:
    train(corpus, tmp_path / "run")
    assert main(grow(tmp_path / "run", tmp_path / "grown", "--set", "d_ff=192")) == 0
    grown = restored(tmp_path / "grown")
    [optimizer] = grown.trainer.optimizers.optimizers  # type: ignore[attr-defined]
    V2 = dict(grown.model.engine.named_parameters())["blocks.0.experts.experts.V2"]
    average = optimizer.state[V2]["exp_avg"]
    assert average[:, :128].count_nonzero() > 0
    assert average[:, 128:].count_nonzero() == 0
    assert float(optimizer.state[V2]["step"]) == 12


def test_a_run_that_shared_a_brain_leaves_it(corpus: Path, tmp_path: Path) -> None:
    train(corpus, tmp_path / "run", "--brain", str(tmp_path / "brain"))
    assert main(grow(tmp_path / "run", tmp_path / "grown", "--set", "n_layers=2")) == 0
    assert config(tmp_path / "grown")["brain"] is None
    assert main(resume(tmp_path / "grown", "--steps", "2")) == 0


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--set", "d_model=16", "--set", "n_heads=1"), "d_model is 32 and cannot shrink to 16"),
        (("--set", "d_model=48"), "makes heads of 24, and they are of 16"),
        (("--set", "top_k=1"), "top_k is 2 and cannot become 1"),
        (("--set", "n_layers=1"), "nothing to grow"),
        (("--to", "stage0"), "makes heads of 64, and they are of 16"),
    ],
)
def test_refused(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    says: str,
) -> None:
    assert says in refusal(capsys, grow(trained, tmp_path / "grown", *options))
    assert not (tmp_path / "grown").exists()


def test_wrong_places(
    trained: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = ("--set", "n_layers=2")
    before = contents(trained)
    assert f"{trained} exists" in refusal(capsys, grow(trained, trained, *layers))
    assert contents(trained) == before
    nowhere = tmp_path / "nowhere"
    assert f"{nowhere} is no run" in refusal(capsys, grow(nowhere, tmp_path / "x", *layers))
    begun = tmp_path / "begun"
    kill_after_step(1, start(corpus, begun, "--steps", "5"))
    line = refusal(capsys, grow(begun, tmp_path / "x", *layers))
    assert f"{begun} has no checkpoint yet" in line
    assert "grow to what" in refusal(capsys, grow(trained, tmp_path / "x"), 2)
    assert "did you mean 'n_layers'" in refusal(
        capsys, grow(trained, tmp_path / "x", "--set", "n_layer=2"), 2
    )
    assert "there is no 'stage9'" in refusal(
        capsys, grow(trained, tmp_path / "x", "--to", "stage9"), 2
    )
    assert not (tmp_path / "x").exists()


def test_nothing_is_left_of_a_write_that_fails(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    monkeypatch.setattr("fractus_core.runs.checkpoint.RETRY_AFTER", ())
    line = refusal(capsys, grow(trained, tmp_path / "grown", "--set", "n_layers=2"))
    assert "No space left on device" in line
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_a_run_of_before_there_was_growth_goes_on(corpus: Path, tmp_path: Path) -> None:
    """Its run.json has no decay_heads, and its checkpoints a checksum of that."""
    out = tmp_path / "run"
    train(corpus, out)
    found = config(out)
    del found["engine"]["decay_heads"]
    (out / "run.json").write_text(json.dumps(found))
    fixed = {f: found[f] for f in ("engine", "frontends", "trainer", "seed", "shard", "brain")}
    for frontend in fixed["frontends"]:
        del frontend["data"]
    checksum = hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
    assert Origin.read(out).checkpoint.info["config"] == checksum
    assert main(resume(out, "--steps", "14")) == 0
    assert main(grow(out, tmp_path / "grown", *EXACT)) == 0
    assert config(tmp_path / "grown")["engine"]["decay_heads"] == 2


def test_help_and_misuse_import_no_torch() -> None:
    code = (
        "import sys; from fractus_core.cli.main import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    for args, expected in ((("grow", "--help"), 0), (("grow", "run", "-o", "x"), 2)):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True)
        assert done.returncode == expected, done.stderr
