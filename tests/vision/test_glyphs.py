"""Glyphs show what they are labelled, and are decided by seed and number alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from fractus_vision import glyphs
from fractus_vision.draws import draw, fractions, permutation
from fractus_vision.glyphs import CLASSES, Glyphs


def test_draws_are_rows_of_one_sequence() -> None:
    whole = np.random.PCG64([3, 1]).random_raw(60).reshape(12, 5)
    numbers = np.array([7, 0, 11, 7])
    assert np.array_equal(draw((3, 1), numbers, 5), whole[numbers])


def test_fractions_fill_the_unit_interval() -> None:
    found = fractions(draw((0,), np.arange(500), 4))
    assert found.shape == (500, 16)
    assert 0 <= found.min() < 0.01 and 0.99 < found.max() < 1
    assert abs(found.mean() - 0.5) < 0.02


def test_permutations_depend_on_the_seed() -> None:
    one, other = permutation((1, 5), 1000), permutation((1, 6), 1000)
    assert sorted(one) == sorted(other) == list(range(1000))
    assert (one != other).mean() > 0.9


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_decided_by_its_number(channels: int) -> None:
    source = Glyphs("train", size=32, channels=channels, seed=4)
    images, labels = source.take(np.arange(20))
    assert images.shape == (20, 32, 32, channels)
    assert images.dtype == np.uint8
    again, labels_again = source.take(np.array([13, 2]))
    assert np.array_equal(again, images[[13, 2]])
    assert np.array_equal(labels_again, labels[[13, 2]])
    other, _ = Glyphs("train", size=32, channels=channels, seed=5).take(np.arange(20))
    assert not np.array_equal(other, images)


def test_what_is_held_out_is_never_trained_on() -> None:
    numbers = np.arange(1500)
    trained = [Glyphs("train", size=16, channels=1, seed=seed).take(numbers)[0] for seed in (0, 1)]
    held_out = Glyphs("validation", size=16, channels=1, seed=0).take(numbers)[0]
    seen = {image.tobytes() for images in trained for image in images}
    assert len(seen) == 3000
    assert not seen & {image.tobytes() for image in held_out}
    same = Glyphs("validation", size=16, channels=1, seed=9)
    assert np.array_equal(same.take(numbers)[0], held_out)
    assert same.count == glyphs.HELD_OUT


def test_every_class_is_as_frequent() -> None:
    _, labels = Glyphs("train", size=16, channels=1, seed=0).take(np.arange(7200))
    counts = np.bincount(labels, minlength=len(CLASSES))
    assert len(counts) == 36
    assert counts.min() > 140 and counts.max() < 260  # 200 +- 4 standard deviations


def cropped(shape: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The smallest part of a (height, width) mask that has all of it."""
    rows, columns = np.nonzero(shape)
    return shape[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def test_pictures_show_their_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Untouched, a picture is the character as Pillow draws it."""
    for name, value in {"TURN": 0.0, "SCALE": (1.0, 1.0), "MOVE": 0.0, "NOISE": 0.0}.items():
        monkeypatch.setattr(glyphs, name, value)
    size = 64
    images, labels = Glyphs("train", size=size, channels=3, seed=0).take(np.arange(60))
    font = ImageFont.load_default(0.9 * size)
    for image, label in zip(images.astype(int), labels, strict=True):
        drawn = Image.new("L", (2 * size, 2 * size))
        ImageDraw.Draw(drawn).text((size, size), CLASSES[label], 255, font, anchor="mm")
        expected = cropped(np.asarray(drawn) > 127)
        ink = np.abs(image - image[0, 0]).sum(-1)
        found = Image.fromarray(cropped(ink > ink.max() / 2).astype(np.uint8))
        resized = np.asarray(found.resize(expected.shape[::-1])) > 0
        assert (resized == expected).mean() > 0.9, CLASSES[label]


def test_ink_can_be_told_from_paper() -> None:
    images, _ = Glyphs("train", size=32, channels=3, seed=0).take(np.arange(300))
    luminance = images.mean(-1).reshape(300, -1)
    spread = np.percentile(luminance, 98, axis=1) - np.percentile(luminance, 2, axis=1)
    assert spread.min() > 35
    paper = images[:, 0, 0].astype(int)
    assert (paper > 140).all(1).any() and (paper < 115).all(1).any()


def test_drawing_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    Glyphs("train", size=32, channels=3, seed=0).take(np.arange(10))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # type: ignore[index]
