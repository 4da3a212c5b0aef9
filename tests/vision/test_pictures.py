"""Pictures show what was counted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from image_files import SIZE, pixels
from PIL import Image

from fractus_vision import pictures
from fractus_vision.pictures import Seen, draw_pictures

CLASSES = ["ant", "bee", "cat", "dog"]


def seen(truths: list[int], answers: list[int], sure: list[float]) -> Seen:
    """Image i is `pixels(i)`, answered with the logit sure[i] above the others."""
    made = Seen(CLASSES)
    images = torch.from_numpy(np.stack([pixels(i) for i in range(len(truths))])).permute(0, 3, 1, 2)
    logits = torch.zeros(len(truths), 4)
    logits[torch.arange(len(truths)), answers] = torch.tensor(sure)
    for batch in torch.arange(len(truths)).split(3):
        made.add(images[batch], logits[batch], torch.tensor(truths)[batch])
    return made


def test_answers_are_counted() -> None:
    truths, answers = [0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 0, 2, 2]
    found = seen(truths, answers, [1.0] * 7)
    expected = np.zeros((4, 4), int)
    np.add.at(expected, (truths, answers), 1)
    assert np.array_equal(found.confusion.numpy(), expected)
    assert found.count == 7
    assert found.summary() == (
        "42.9% of 7 images right; most often wrong: ant as bee (2), bee as ant (1), dog as cat (1)"
    )
    assert seen([1, 2], [1, 2], [1.0, 1.0]).summary() == "100.0% of 2 images right"


def test_the_worst_mistakes_are_kept(monkeypatch: object) -> None:
    sure = [1.0, 5.0, 3.0, 0.5, 4.0, 9.0, 2.0]
    found = seen([0] * 7, [1, 1, 2, 3, 1, 0, 1], sure)
    order = [
        next(i for i in range(7) if np.array_equal(image.permute(1, 2, 0), pixels(i)))
        for _, image, *_ in found.mistakes
    ]
    assert order == [1, 4, 2, 6, 0, 3]  # the fifth was right
    many = seen([0] * 100, [1] * 100, torch.rand(100).tolist())
    assert len(many.mistakes) == pictures.MISTAKES
    assert many.count == 100


def test_pictures_are_drawn(tmp_path: Path) -> None:
    found = seen([0, 0, 0, 1, 1, 2, 3, 3], [0, 1, 1, 1, 0, 2, 2, 2], [1, 2, 3, 1, 9, 1, 4, 5.0])
    draw_pictures(found, tmp_path / "made" / "here")
    with Image.open(tmp_path / "made" / "here" / "mistakes.png") as sheet:
        left = np.asarray(sheet)[8:104, 8:104]
    worst = Image.fromarray(pixels(4)).resize((96, 96), Image.Resampling.NEAREST)
    assert np.array_equal(left, np.asarray(worst))
    with Image.open(tmp_path / "made" / "here" / "confusion.png") as matrix:
        side = matrix.width
        cells = np.asarray(matrix).astype(int)
    cell = 44
    margin = side - 4 * cell
    corner = cells[margin + 3 :: cell, margin + 3 :: cell][:4, :4]
    blue, red = corner[..., 2] - corner[..., 0] > 20, corner[..., 0] - corner[..., 2] > 20
    assert np.array_equal(blue, np.diag([True, True, True, False]))
    assert np.array_equal(red, (found.confusion.numpy() > 0) & ~np.eye(4, dtype=bool))
    assert [file.name for file in sorted((tmp_path / "made" / "here").iterdir())] == [
        "confusion.png",
        "mistakes.png",
    ]


def test_pictures_of_many_classes_and_of_no_mistakes(tmp_path: Path) -> None:
    many = Seen([f"class {i}" for i in range(300)])
    targets = torch.arange(300)
    many.add(torch.zeros(300, 1, SIZE, SIZE, dtype=torch.uint8), torch.eye(300), targets)
    draw_pictures(many, tmp_path)
    assert not (tmp_path / "mistakes.png").exists()
    with Image.open(tmp_path / "confusion.png") as matrix:
        assert 1000 < matrix.width < 1400


def test_grey_and_large_images(tmp_path: Path) -> None:
    found = Seen(CLASSES)
    found.add(
        torch.full((1, 1, 200, 200), 90, dtype=torch.uint8), torch.eye(4)[:1], torch.tensor([2])
    )
    draw_pictures(found, tmp_path)
    with Image.open(tmp_path / "mistakes.png") as sheet:
        assert (np.asarray(sheet)[8:104, 8:104] == 90).all()
