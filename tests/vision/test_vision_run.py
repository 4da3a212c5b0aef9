"""A run that sees: trained, stopped and gone on with, asked and evaluated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from image_files import encoded, write_folder
from PIL import Image
from running import Left, assert_same, left, metrics

from fractus_core.cli.main import main
from fractus_vision import glyphs

TINY = (
    *("--frontend", "vision", "--vision.size", "16", "--vision.batch_size", "8"),
    *("--set", "d_model=32", "--set", "n_layers=1", "--cpu.threads", "1", "--log-every", "1"),
    *("--eval-every", "4", "--eval-tokens", "512"),
)
CLASSES = {"cat": range(20), "dog": range(100, 120), "eel": range(200, 220)}


@pytest.fixture(autouse=True)
def few_glyphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short pass over what is held out."""
    monkeypatch.setattr(glyphs, "HELD_OUT", 64)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_folder(tmp_path / "data" / "train", CLASSES)
    write_folder(
        tmp_path / "data" / "test", {name: range(300 + i, 330, 3) for i, name in enumerate(CLASSES)}
    )
    return tmp_path / "data"


def run(data: Path | str, out: Path, *options: str) -> Left:
    assert main(["run", "--data", str(data), "--out", str(out), *TINY, *options]) == 0
    return left(out)


def answer(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    """What a command prints, as JSON."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == 1
    lines = capsys.readouterr().err.splitlines()
    [line] = [line for line in lines if line.startswith("fractus: error: ")]
    return line


@pytest.mark.parametrize("options", [(), ("--vision.shift", "2", "--vision.answer", "every")])
@pytest.mark.parametrize("which", ["folder", "glyphs"])
def test_a_resumed_run_is_the_same(
    which: str, options: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    """Bit for bit: 60 images, 8 a step, so that it stops within the first epoch or the second."""
    where = data if which == "folder" else "glyphs"
    constant = ("--cpu.decay_from", "0.99")  # a longer budget must not move the learning rate
    whole = run(where, tmp_path / "long", "--steps", "10", *options, *constant)
    run(where, tmp_path / "short", "--steps", "5", *options, *constant)
    assert main(["run", "--resume", str(tmp_path / "short"), "--steps", "10"]) == 0
    found = left(tmp_path / "short")
    assert found.values["info"]["cursors"]["vision"] == {"image": 80}
    assert_same(found, whole)


def test_figures_and_pictures(data: Path, tmp_path: Path) -> None:
    found = run(data, tmp_path / "run", "--steps", "6")
    figures = found.values["summary"]["frontends"]["vision"]
    assert figures["tokens"] == 30 * 16
    assert 0 <= figures["accuracy"] <= 1
    assert figures["loss_warm"] == figures["loss_cold"]  # every image begins anew
    assert figures["loss_uniform"] == pytest.approx(1.0986, abs=1e-4)
    evaluations = [line for line in metrics(tmp_path / "run") if line["kind"] == "eval"]
    assert [line["step"] for line in evaluations] == [4, 6]
    assert "images right" in evaluations[-1]["sample"]
    for step in (4, 6):
        with Image.open(tmp_path / "run" / "pictures" / str(step) / "confusion.png") as image:
            image.load()
    trained = [line for line in metrics(tmp_path / "run") if line["kind"] == "train"]
    assert [line["tokens"] for line in trained] == [8 * 16 * step for step in range(1, 7)]


def test_classify(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    run(data, out, "--steps", "3", "--vision.scan", "centre-out")
    files = sorted((data / "test" / "cat").iterdir())[:2]
    found = answer(capsys, "classify", out, *files, "--json")
    assert [report["image"] for report in found] == [str(file) for file in files]
    for report in found:
        probabilities = report["probabilities"]
        assert set(probabilities) == set(CLASSES)
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-3)
        assert list(probabilities.values()) == sorted(probabilities.values(), reverse=True)
        assert report["class"] == next(iter(probabilities))
        assert 0 < report["confidence"] < 1
    [watched] = answer(capsys, "classify", out, files[0], "--json", "--watch", "--top", "2")
    assert watched["class"] == found[0]["class"]
    assert [step["patch"] for step in watched["watch"]] == list(range(1, 17))
    assert {(step["row"], step["column"]) for step in watched["watch"][:4]} == {
        (row, column) for row in (1, 2) for column in (1, 2)
    }
    assert watched["watch"][-1]["probabilities"] == watched["probabilities"]
    assert len(watched["probabilities"]) == 2

    assert main(["classify", str(out), str(files[0]), "--watch"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{files[0]}: {found[0]['class']} (confidence 0.")
    assert len(printed) == 1 + 16 + 3


def test_what_cannot_be_classified(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run(data, out, "--steps", "1")
    cut = tmp_path / "cut.png"
    cut.write_bytes(encoded(1)[:-400])
    missing = tmp_path / "missing.png"
    assert str(cut) in refusal(capsys, "classify", out, cut)
    assert str(missing) in refusal(capsys, "classify", out, missing)
    assert "is no run" in refusal(capsys, "classify", tmp_path, cut)


def test_a_run_without_eyes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractus_text.frontend.SAMPLE_TOKENS", 1)
    text = tmp_path / "text.txt"
    text.write_text("some words that go on and on, and on again; " * 60)
    options = ["--text.tokenizer", "bytes", "--set", "d_model=32", "--set", "n_layers=1"]
    size = ["--cpu.batch_size", "2", "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(["run", "--data", str(text), *options, *size]) == 0
    line = refusal(capsys, "classify", tmp_path / "run", tmp_path / "a.png")
    assert line.endswith("has no front-end that sees; it has text")


def test_evaluated_on_other_data(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run(data, out, "--steps", "2")
    held_out = answer(capsys, "eval", out, "--json")["vision"]
    other = answer(capsys, "eval", out, "--data", data / "test", "--json")["vision"]
    assert other["accuracy"] == held_out["accuracy"]
    assert other["loss_warm"] == pytest.approx(held_out["loss_warm"], rel=1e-5)
    line = refusal(capsys, "eval", out, "--data", tmp_path / "none")
    assert "no such data" in line


def test_changed_data_is_refused(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(data, tmp_path / "run", "--steps", "2")
    (data / "train" / "cat" / "00001.png").write_bytes(encoded(999))
    assert "has changed" in refusal(capsys, "run", "--resume", tmp_path / "run", "--steps", "4")


@pytest.mark.parametrize("how", ["skip", "refuse"])
def test_bad_images_in_a_run(
    how: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = data / "train" / "cat" / "bad.png"
    bad.write_text("no image")
    (data / "train" / "fox").mkdir()
    args = ["run", "--data", str(data), "--out", str(tmp_path / "run"), *TINY, "--steps", "1"]
    code = main([*args, "--vision.on_invalid", how])
    lines = [line for line in capsys.readouterr().err.splitlines() if "fractus: " in line]
    if how == "refuse":
        assert code == 1
        assert len(lines) == 1
        assert not (tmp_path / "run").exists()
        return
    assert code == 0
    assert [line.split()[2] for line in lines] == [f"{data / 'train' / 'fox'}:", f"{bad}:"]


@pytest.mark.slow
def test_glyphs_are_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sixth of the steps that three minutes have on two cores."""
    options = ["--frontend", "vision", "--steps", "200", "--out", str(tmp_path / "run")]
    found = answer(capsys, "run", *options, "--json")
    assert found["frontends"]["vision"]["accuracy"] > 0.9
