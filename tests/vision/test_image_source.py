"""Every image comes once an epoch, and a source that was put back goes on as it would have."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_files import SIZE, options, pixels, write_folder
from torch import Tensor

from fractus_core.api import Batch, FractusError
from fractus_vision.augmentation import Augmentation
from fractus_vision.draws import draw
from fractus_vision.frontend import VisionFrontend
from fractus_vision.source import ImageSource

CLASSES = {"cat": range(10), "dog": range(100, 115), "eel": range(200, 205)}
STILL = {"mirror": False, "shift": 0}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_folder(tmp_path / "data" / "train", CLASSES)
    write_folder(
        tmp_path / "data" / "test", {name: range(300 + i, 320, 3) for i, name in enumerate(CLASSES)}
    )
    return tmp_path / "data"


def opened(data: Path | str, split: Any = "train", *, seed: int = 0, **changed: Any) -> ImageSource:
    chosen = options(**changed)
    frontend = VisionFrontend(8, chosen, VisionFrontend.infer_schema(str(data), chosen))
    return frontend.open(str(data), split, batch_size=5, chunk_len=3, seed=seed)  # type: ignore[return-value]


def names(batches: list[Batch]) -> list[int]:
    """The numbers that `image_files.pixels` made the images from."""
    images = torch.cat([batch.observations for batch in batches])
    return [256 * int(image[0, 0, 0]) + int(image[1, 0, 0]) for image in images]


def same(one: Batch, other: Batch) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("observations", "targets", "starts")
    )


def test_batches_are_images_and_their_classes(data: Path) -> None:
    source = opened(data, **STILL)
    batch = next(source)
    assert batch.observations.shape == (4, 3, SIZE, SIZE)
    assert batch.observations.dtype == torch.uint8
    assert batch.starts.tolist() == [True] * 4
    for image, name, target in zip(batch.observations, names([batch]), batch.targets, strict=True):
        assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(name))
        assert int(target) == name // 100


def test_every_image_once_an_epoch(data: Path) -> None:
    """30 images, 4 at a time: batches cross the ends of epochs."""
    read = names(list(islice(opened(data, **STILL), 45)))
    expected = sorted(number for numbers in CLASSES.values() for number in numbers)
    epochs = [read[start : start + 30] for start in range(0, 180, 30)]
    assert all(sorted(epoch) == expected for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert read != names(list(islice(opened(data, seed=1, **STILL), 45)))


@pytest.mark.parametrize("how", [{}, {"shift": 3}, {"batch_size": 64, "shift": 2}])
@pytest.mark.parametrize("which", ["folder", "glyphs"])
def test_seek_is_exact(which: str, how: dict[str, Any], data: Path) -> None:
    """To the image, with its augmentation, also beyond the end of an epoch."""
    where = data if which == "folder" else "glyphs"
    source, other = opened(where, **how), opened(where, **how)
    for _ in range(12):
        cursor = source.cursor()
        batch = next(source)
        other.seek(cursor)
        assert same(next(other), batch)
        assert other.cursor() == source.cursor()
    assert not same(next(source), batch)


@pytest.mark.parametrize("split", ["validation", "all"])
def test_one_pass(split: Any, data: Path) -> None:
    source = opened(data, split)
    batches = list(source)
    read = names(batches)
    assert len(read) == len(set(read))
    expected = {"validation": 20, "all": 50}[split]
    assert len(read) == expected
    assert len(batches[-1].targets) == expected % 4 or 4
    assert len({name // 100 for name in read} - {3}) in (0, 3)
    # A part of it is a sample: files lie sorted by class.
    assert len({int(t) for batch in batches[:3] for t in batch.targets}) == 3
    assert names(list(opened(data, split, seed=7))) == read
    source.seek({"image": 4})
    assert names(list(source)) == read[4:]


def test_no_such_place(data: Path) -> None:
    with pytest.raises(FractusError, match="no image 21: the validation split has 20"):
        opened(data, "validation").seek({"image": 21})
    with pytest.raises(FractusError, match="no image -1"):
        opened(data).seek({"image": -1})


def test_rows(data: Path) -> None:
    assert opened(data).rows == 4
    assert opened(data, batch_size=0).rows == 5
    assert len(next(opened(data, batch_size=100)).targets) == 100  # more than there are


def test_fingerprints(data: Path) -> None:
    """Equal if and only if the same batches come out."""
    first = opened(data).fingerprint
    assert opened(data).fingerprint == first
    others = [
        opened(data, seed=1),
        opened(data, mirror=False),
        opened(data, shift=1),
        opened(data, batch_size=5),
        opened(data, "validation"),
        opened(data, "all"),
        opened("glyphs"),
        opened("glyphs", seed=1),
        opened("glyphs", "validation"),
        opened("glyphs", colour=False),
    ]
    assert len({first, *(source.fingerprint for source in others)}) == 1 + len(others)
    held_out = opened(data, "validation")
    assert opened(data, "validation", seed=1, shift=4).fingerprint == held_out.fingerprint
    (data / "train" / "cat" / "00000.png").unlink()
    assert opened(data).fingerprint != first


def test_glyphs_are_endless_and_as_drawn() -> None:
    source = opened("glyphs", mirror=True, shift=3)
    batches = list(islice(source, 50))
    assert (
        len({image.numpy().tobytes() for batch in batches for image in batch.observations}) == 200
    )
    assert source.cursor() == {"image": 200}
    plain = opened("glyphs", **STILL)
    assert same(next(plain), batches[0])


def test_the_global_generators_are_left_alone(data: Path) -> None:
    source = opened(data, shift=3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    next(source)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]


# ------------------------------------------------------------------------------------- augmentation


def batch_of_images(count: int) -> Tensor:
    return torch.from_numpy(np.stack([pixels(i) for i in range(count)])).permute(0, 3, 1, 2)


def test_half_are_mirrored() -> None:
    images = batch_of_images(200)
    found = Augmentation(mirror=True, shift=0)(images, draw((0,), np.arange(200), 1))
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(found, images, strict=True)]
    still = [torch.equal(a, b) for a, b in zip(found, images, strict=True)]
    assert [not m for m in mirrored] == still
    assert 70 < sum(mirrored) < 130


@pytest.mark.parametrize("shift", [1, 4])
def test_shifts_are_windows_of_the_image_mirrored_at_its_edges(shift: int) -> None:
    images = batch_of_images(300)
    found = Augmentation(mirror=False, shift=shift)(images, draw((0,), np.arange(300), 1))
    assert found.shape == images.shape
    ways = set()
    for image, moved in zip(images.numpy(), found.numpy(), strict=True):
        grown = np.pad(image, ((0, 0), (shift, shift), (shift, shift)), mode="reflect")
        matches = [
            (y, x)
            for y in range(2 * shift + 1)
            for x in range(2 * shift + 1)
            if np.array_equal(grown[:, y : y + SIZE, x : x + SIZE], moved)
        ]
        assert len(matches) == 1
        ways.add(matches[0])
    assert len(ways) > 0.85 * (2 * shift + 1) ** 2
