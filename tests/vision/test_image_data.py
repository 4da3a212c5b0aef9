"""Data sets are found, decoded once, split, and what is wrong with them is told by name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import SIZE, encoded, options, pixels, write_folder, write_parquet
from PIL import Image

from fractus_core.api import FractusError
from fractus_vision import pixels as pixels_module
from fractus_vision.dataset import find
from fractus_vision.frontend import VisionFrontend
from fractus_vision.pixels import Decoded, decode_all
from fractus_vision.source import ImageSource

CLASSES = {"cat": range(10), "dog": range(100, 115), "eel": range(200, 205)}


def decoded(data: Path, **columns: str) -> Decoded:
    found = find(str(data), **{"image_column": "", "label_column": "label"} | columns)
    return decode_all(found, size=SIZE, channels=3)


def opened(data: Path | str, split: Any = "train", **changed: Any) -> ImageSource:
    """As a new run would."""
    chosen = options(**changed)
    frontend = VisionFrontend(8, chosen, VisionFrontend.infer_schema(str(data), chosen))
    return frontend.open(str(data), split, batch_size=4, chunk_len=1, seed=0)  # type: ignore[return-value]


def numbers(found: Decoded, split: Any, validation: float = 0.2) -> list[int]:
    """Which of the pictures of `image_files.pixels` are in a split."""
    images = found.images[found.numbers(split, validation=validation)]
    return [int(a) * 256 + int(b) for a, b in images[:, 0, 0, :2]]


# ------------------------------------------------------------------------------------- what is read


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    found = decoded(write_folder(tmp_path / "data", CLASSES))
    assert found.classes == ("cat", "dog", "eel")
    assert found.faults == ()
    expected = [number for name in CLASSES for number in CLASSES[name]]
    assert numbers(found, "all") == expected
    assert np.array_equal(found.images, np.stack([pixels(number) for number in expected]))
    assert found.labels.tolist() == [0] * 10 + [1] * 15 + [2] * 5


def test_a_folder_with_splits(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", CLASSES)
    write_folder(tmp_path / "test", {name: [300 + i] for i, name in enumerate(CLASSES)})
    found = decoded(tmp_path)
    assert numbers(found, "validation") == [300, 301, 302]
    assert len(numbers(found, "train")) == 30
    assert sorted(numbers(found, "all")) == sorted(
        numbers(found, "train") + numbers(found, "validation")
    )


@pytest.mark.parametrize("held_out", ["validation", "valid", "val", "test"])
def test_parquet_with_splits(held_out: str, tmp_path: Path) -> None:
    data = tmp_path / "data" / "deeper"
    for shard in range(2):
        images = [encoded(shard * 10 + i) for i in range(10)]
        write_parquet(data / f"train-0000{shard}-of-00002.parquet", images, [0, 1] * 5, "ab")
    write_parquet(data / f"{held_out}-00000-of-00001.parquet", [encoded(50)], [1], "ab")
    found = decoded(tmp_path / "data")
    assert found.classes == ("a", "b")
    assert numbers(found, "train") == list(range(20))
    assert numbers(found, "validation") == [50]
    assert found.labels.tolist() == [0, 1] * 10 + [1]


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([0, 1, 2, 0], ("0", "1", "2"), [0, 1, 2, 0]),
        ([7, 3, 7, 5], ("3", "5", "7"), [2, 0, 2, 1]),
        (["b", "a", "b", "c"], ("a", "b", "c"), [1, 0, 1, 2]),
    ],
)
def test_labels_without_names(
    labels: list[Any], classes: tuple[str, ...], expected: list[int], tmp_path: Path
) -> None:
    file = write_parquet(tmp_path / "a.parquet", [encoded(i) for i in range(4)], labels)
    found = decoded(file)
    assert found.classes == classes
    assert found.labels.tolist() == expected


def test_columns_by_name(tmp_path: Path) -> None:
    images = [encoded(i) for i in range(4)]
    file = write_parquet(tmp_path / "a.parquet", images, [1, 0, 1, 0], (), ("picture", "kind"))
    assert decoded(file, label_column="kind").labels.tolist() == [1, 0, 1, 0]
    with pytest.raises(FractusError, match=r"no column 'label'; it has picture, kind"):
        decoded(file)
    with pytest.raises(FractusError, match="column 'kind' holds int64, not images"):
        decoded(file, image_column="kind", label_column="kind")
    with pytest.raises(
        FractusError, match=r"column .picture. holds struct.*, not numbers or names"
    ):
        decoded(file, label_column="picture")


def test_the_shared_folder(shared_data: Path) -> None:
    found = decode_all(
        find(str(shared_data / "cifar10_folder"), image_column="", label_column="label"),
        size=32,
        channels=3,
    )
    assert len(found.classes) == 10
    assert dict(found.lengths) == {"train": 200, "validation": 50}
    assert found.faults == ()
    number = 3 * 20 + 1  # the second cat
    file = sorted((shared_data / "cifar10_folder" / "train" / "cat").iterdir())[1]
    with Image.open(file) as image:
        assert np.array_equal(found.images[number], np.asarray(image.convert("RGB")))


def test_the_shared_tables(shared_data: Path) -> None:
    found = decode_all(
        find(str(shared_data / "cifar10_lossless"), image_column="", label_column="label"),
        size=32,
        channels=3,
    )
    assert dict(found.lengths) == {"train": 2000, "validation": 500}
    assert found.classes[3:6] == ("cat", "deer", "dog")
    assert np.bincount(found.labels).min() > 150


def test_splits_of_which_none_is_held_out(tmp_path: Path) -> None:
    """Some images of `train` are, then."""
    folder = write_folder(tmp_path / "folder" / "train", CLASSES).parent
    table = tmp_path / "table"
    write_parquet(
        table / "train-00000-of-00001.parquet", [encoded(i) for i in range(6)], [0, 1] * 3
    )
    for data in (folder, table):
        found = decoded(data)
        assert set(found.lengths) == {"all"}
        assert numbers(found, "validation")
    assert decoded(folder).classes == ("cat", "dog", "eel")


def test_the_hub_without_a_network(no_network: None) -> None:
    for data in ("cifar10", "hf:someone/something"):
        with pytest.raises(FractusError, match=r"cannot find hf:.* check the name and the network"):
            find(data, image_column="", label_column="label")


def test_a_data_set_of_the_library(tmp_path: Path) -> None:
    """`hf:` also takes a folder, which needs no network."""
    pytest.importorskip("datasets")
    data = tmp_path / "hub" / "data"
    write_parquet(
        data / "train-00000-of-00001.parquet", [encoded(i) for i in range(6)], [0, 1] * 3, "ab"
    )
    write_parquet(data / "test-00000-of-00001.parquet", [encoded(9)], [1], "ab")
    found = find(f"hf:{tmp_path / 'hub'}", image_column="", label_column="label")
    made = decode_all(found, size=SIZE, channels=3)
    assert made.classes == ("a", "b")
    assert numbers(made, "train") == list(range(6))
    assert numbers(made, "validation") == [9]


# ------------------------------------------------------------------------------------------- splits


def test_splits_are_a_stratified_partition(tmp_path: Path) -> None:
    found = decoded(write_folder(tmp_path / "data", CLASSES))
    train, validation = numbers(found, "train"), numbers(found, "validation")
    assert sorted(train + validation) == sorted(numbers(found, "all"))
    assert [sum(n in CLASSES[name] for n in validation) for name in CLASSES] == [2, 3, 1]
    assert len(numbers(found, "validation", 0.5)) == 15 - 1 + 1  # 5, 8 and 2


def test_copies_stay_together(tmp_path: Path) -> None:
    """Even those of another class."""
    images = [encoded(i // 3) for i in range(60)]
    file = write_parquet(tmp_path / "a.parquet", images, [i % 2 for i in range(60)])
    found = decoded(file)
    train, validation = numbers(found, "train"), numbers(found, "validation")
    assert not set(train) & set(validation)
    assert len(train) + len(validation) == 60
    assert validation


def test_the_split_is_by_content(tmp_path: Path) -> None:
    """Not by names or order, so that it stays when images are added elsewhere."""
    images = [encoded(i) for i in range(40)]
    one = decoded(write_parquet(tmp_path / "a.parquet", images, [0, 1] * 20))
    other = decoded(write_parquet(tmp_path / "b.parquet", images[::-1], [1, 0] * 20))
    assert sorted(numbers(one, "validation")) == sorted(numbers(other, "validation"))


# -------------------------------------------------------------------------------------------- cache


def test_decoded_once(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", CLASSES)
    calls: list[tuple[int, int]] = []

    def decode_again(size: int = SIZE) -> Decoded:
        calls.clear()
        found = find(str(data), image_column="", label_column="label")
        return decode_all(found, size=size, channels=3, progress=lambda *call: calls.append(call))

    first = decode_again()
    assert calls[-1] == (30, 30)
    assert decode_again().fingerprint == first.fingerprint
    assert not calls
    assert decode_again(SIZE + 1).fingerprint != first.fingerprint
    assert calls
    (data / "cat" / "00000.png").write_bytes(encoded(77))
    assert decode_again().fingerprint != first.fingerprint
    assert calls


def test_more_images_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels_module, "_BLOCK", 7)
    found = decoded(write_folder(tmp_path / "data", CLASSES))
    assert np.array_equal(found.images[:10], np.stack([pixels(number) for number in range(10)]))


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "manifest.json"])
def test_damage_is_named(name: str, tmp_path: Path, cache: Path) -> None:
    data = write_folder(tmp_path / "data", CLASSES)
    decoded(data)
    [file] = cache.rglob(name)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FractusError, match="damaged cache") as caught:
        decoded(data)
    assert str(file) in str(caught.value)


def test_nothing_is_left_of_an_interrupted_decoding(tmp_path: Path, cache: Path) -> None:
    data = write_folder(tmp_path / "data", CLASSES)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_all(
            find(str(data), image_column="", label_column="label"),
            size=SIZE,
            channels=3,
            progress=interrupt,
        )
    assert [file.suffix for file in (cache / "images").iterdir()] == [".lock"]
    assert len(decoded(data).images) == 30


# ---------------------------------------------------------------------------------------- bad input


def refused(data: Path | str, **changed: Any) -> str:
    """The one line that says what is wrong."""
    with pytest.raises(FractusError) as caught:
        opened(data, on_invalid="refuse", **changed)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def skipped(data: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that say what is left out, when it is."""
    opened(data)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fractus:")]
    return [line.removeprefix("fractus: skipped ") for line in lines]


def test_files_that_cannot_be_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_folder(tmp_path / "data", CLASSES)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    Image.new("RGB", (100, 100)).save(data / "cat" / "bomb.png")
    (data / "cat" / "cut.png").write_bytes(encoded(1)[:-400])
    (data / "dog" / "text.jpg").write_text("not an image")
    (data / "dog" / "notes.txt").write_text("of no matter")
    lines = skipped(data, capsys)
    assert [line.partition(": ")[0] for line in lines] == [
        str(data / "cat" / "bomb.png"),
        str(data / "cat" / "cut.png"),
        str(data / "dog" / "text.jpg"),
    ]
    assert "decompression bomb" in lines[0]
    assert "cannot be decoded" in lines[1]
    assert "no image" in lines[2]
    assert len(decoded(data).images) == 30
    assert refused(data).startswith(f"{data / 'cat' / 'bomb.png'}: ")


def test_many_faults_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_folder(tmp_path / "data", CLASSES)
    for number in range(9):
        (data / "cat" / f"{number}.jpg").write_text("no")
    lines = skipped(data, capsys)
    assert len(lines) == 6
    assert lines[-1] == "9 in all"
    assert skipped(data, capsys) == lines  # also from the cache


def test_labels_out_of_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images: list[bytes | None] = [encoded(i) for i in range(12)]
    images[4] = None
    labels = [0, 1, 2, -1, 0, None, 1, 0, 1, 0, 1, 0]
    file = write_parquet(tmp_path / "a.parquet", images, labels, "ab")
    lines = skipped(file, capsys)
    assert lines == [
        f"{file}, row 2: its label 2 is none of the 2 that there are, 0 to 1",
        f"{file}, row 3: its label -1 is none of the 2 that there are, 0 to 1",
        f"{file}, row 4: it has no image",
        f"{file}, row 5: it has no label",
    ]
    assert refused(file).startswith(lines[0])


def test_negative_labels_without_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_parquet(tmp_path / "a.parquet", [encoded(i) for i in range(9)], [0, 1, -1] * 3)
    assert "row 2: its label -1 is none of the 2" in skipped(file, capsys)[0]


def test_an_empty_class_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_folder(tmp_path / "data", CLASSES | {"fox": []})
    assert skipped(data, capsys) == [f"{data / 'fox'}: the class folder holds no image"]
    assert refused(data).startswith(f"{data / 'fox'}: ")
    assert decoded(data).classes == ("cat", "dog", "eel")


def test_a_class_missing_in_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "data" / "train", CLASSES)
    write_folder(tmp_path / "data" / "test", {"cat": [300], "dog": [301]})
    line = f"{tmp_path / 'data'}: class 'eel' has no image in validation"
    assert skipped(tmp_path / "data", capsys) == [line]
    assert refused(tmp_path / "data").startswith(line)
    alone = write_folder(tmp_path / "alone", {"cat": range(5), "dog": [9]})
    assert "class 'dog' has no image in validation" in skipped(alone, capsys)[0]


def test_a_class_that_is_only_in_validation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folder(tmp_path / "train", CLASSES)
    write_folder(tmp_path / "test", {name: [300 + i] for i, name in enumerate([*CLASSES, "fox"])})
    [line] = skipped(tmp_path, capsys)
    assert line.startswith(f"{tmp_path / 'test' / 'fox' / '00303.png'}: its label 'fox' is none of")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such data"),
        (lambda path: path.mkdir(), "no class folders with images"),
        (lambda path: path.write_text("a"), "is no Parquet file"),
        (lambda path: write_folder(path, {"cat": range(3)}), "has 1 class"),
    ],
)
def test_no_data_set(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "data")
    with pytest.raises(FractusError, match=message) as caught:
        opened(tmp_path / "data")
    assert str(tmp_path / "data") in str(caught.value)


def test_nothing_that_can_be_used(tmp_path: Path) -> None:
    data = write_folder(tmp_path / "data", {"cat": [], "dog": []})
    for name in ("cat", "dog"):
        (data / name / "a.png").write_text("no")
    with pytest.raises(FractusError, match=r"no image to use in all: .*dog/a\.png"):
        opened(data)


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", [encoded(i) for i in range(9)], [0, 1, 2] * 3)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert refused(file).startswith(f"damaged Parquet file {file}: ")
    file.write_bytes(data[:4] + bytes(2000) + data[2004:])
    assert refused(file).startswith(f"damaged Parquet file {file}: ")


def test_other_data_has_to_have_the_same_classes(tmp_path: Path) -> None:
    """Its classes are matched by name, whatever their numbers."""
    chosen = options()
    data = write_folder(tmp_path / "data", CLASSES)
    frontend = VisionFrontend(8, chosen, VisionFrontend.infer_schema(str(data), chosen))
    other = write_folder(tmp_path / "other", {"eel": [1, 2], "dog": [3]})
    source = frontend.open(str(other), "all", batch_size=4, chunk_len=1, seed=0)
    batch = next(source)
    read = {
        int(image[1, 0, 0]): int(label)
        for image, label in zip(batch.observations, batch.targets, strict=True)
    }
    assert read == {1: 2, 2: 2, 3: 1}
    foreign = write_folder(tmp_path / "foreign", {"dog": [1], "fox": [2]})
    with pytest.raises(FractusError, match="has a class 'fox'; this run knows cat, dog, eel"):
        frontend.open(str(foreign), "all", batch_size=4, chunk_len=1, seed=0)


@pytest.mark.slow
def test_decoding_is_fast_enough_to_wait_for(shared_data: Path) -> None:
    begun = time.monotonic()
    found = find(str(shared_data / "cifar10"), image_column="", label_column="label")
    made = decode_all(found, size=32, channels=3)
    assert dict(made.lengths) == {"train": 50_000, "validation": 10_000}
    assert time.monotonic() - begun < 60
