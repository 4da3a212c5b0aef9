"""The races on toy data for a moment: who wins means nothing, but all arrive."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from running import WORDS

from fractus_bench.cells import growth, race
from fractus_bench.records import SkipCellError
from fractus_core.cli.main import main

TINY = ["--set", "d_model=32", "--set", "n_layers=1"]
UNTRAINED = 5.0
"""Above the loss of a network that has learned nothing: how far one gets depends on the machine."""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    (folder / "text").mkdir(parents=True)
    draw = np.random.default_rng(0)
    (folder / "text" / "tinyshakespeare.txt").write_text(" ".join(draw.choice(WORDS, 4000)))
    for place in ("train/dark", "train/light", "test/dark", "test/light"):
        images = folder / "cifar10" / place
        images.mkdir(parents=True)
        for number in range(20):
            pixels = draw.integers(128, size=(32, 32, 3)) + 127 * place.endswith("light")
            Image.fromarray(pixels.astype(np.uint8)).save(images / f"{number}.png")
    monkeypatch.setenv("FRACTUS_BENCH_DATA", str(folder))
    monkeypatch.setenv("FRACTUS_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands need no process of their own, which takes some seconds to start."""

    def fractus(*args: str) -> Any:
        with redirect_stdout(io.StringIO()) as printed:
            assert main([*args, "--json"]) == 0
        return json.loads(printed.getvalue())

    for module in (growth, race):
        monkeypatch.setattr(module, "fractus", fractus)


def test_without_data_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"repeats": 1, "seconds": 1, "engine": []}
    monkeypatch.delenv("FRACTUS_BENCH_DATA", raising=False)
    with pytest.raises(SkipCellError, match="set FRACTUS_BENCH_DATA to a folder"):
        race.chars(**arguments, controls=[])
    monkeypatch.setenv("FRACTUS_BENCH_DATA", str(tmp_path))
    with pytest.raises(SkipCellError, match=r"there is no .*cifar10"):
        race.cifar(**arguments, lr={})


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_characters(data: Path) -> None:
    controls = [{"n_layers": 1, "lr": 4e-3, "schedule": schedule} for schedule in ("wsd", "cosine")]
    found = race.chars(repeats=2, seconds=1.5, engine=TINY, controls=controls)
    assert [row["variant"] for row in found.rows] == [
        "fractus",
        "GPT, 1 layers, wsd, lr 0.004",
        "GPT, 1 layers, cosine, lr 0.004",
    ]
    for row in found.rows:
        assert 0 < row["loss"]["median"] < UNTRAINED
        assert row["loss"]["n"] == 2
        assert row["parameters"] > 1000
    for row in found.rows[1:]:
        assert 0 < row["loss_windows"]["median"] < UNTRAINED


@pytest.mark.slow
def test_images(data: Path) -> None:
    lr = {"vit": 1e-3, "cnn": 3e-3}
    found = race.cifar(repeats=1, seconds=1.5, engine=TINY, lr=lr)
    assert [row["variant"] for row in found.rows] == ["fractus", "ViT", "CNN"]
    ours = found.rows[0]["parameters"]
    for row in found.rows:
        # A second and a half teaches a control nothing for certain, so only the count is checked.
        assert 40 * row["accuracy"] == pytest.approx(round(40 * row["accuracy"]))
        assert 0 <= row["accuracy"] <= 1
        assert row["parameters"] == pytest.approx(ours, rel=0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_growth(data: Path) -> None:
    options = ["--text.validation", "0.3", "--eval-tokens", "512"]
    found = growth.chars(
        repeats=1, steps=4, further=6, every=3, small="stage0", large="stage1", options=options
    )
    assert [(row["variant"], row["step"]) for row in found.rows] == [
        ("stage0", 3),
        ("stage0", 4),
        ("stage1, grown", 3),
        ("stage1, grown", 6),
        ("stage1, from scratch", 3),
        ("stage1, from scratch", 6),
    ]
    assert all(0 < row["loss"] < 5 for row in found.rows)
