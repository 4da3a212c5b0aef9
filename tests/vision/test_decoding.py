"""Whatever a file holds becomes 8-bit pixels, or a reason why not."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fractus_vision.decoding import InvalidItemError, decode, refusing_bombs, suffixes

COLOUR = (200, 40, 90)


def saved(image: Image.Image, kind: str = "png", **how: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, kind, **how)
    return data.getvalue()


def pixels(data: bytes | Path, size: int = 16, channels: int = 3) -> np.ndarray[Any, Any]:
    with refusing_bombs():
        found = decode(data, size=size, channels=channels)
    assert found.shape == (size, size, channels)
    assert found.dtype == np.uint8
    return found.astype(int)


def test_lossless_pixels_stay_as_they_are() -> None:
    made = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    assert np.array_equal(pixels(saved(Image.fromarray(made))), made)


@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp", "gif", "webp", "tiff", "ppm"])
def test_every_usual_kind_of_file(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{kind}"
    Image.new("RGB", (40, 40), COLOUR).save(file, kind)
    assert f".{kind}" in suffixes()
    assert np.abs(pixels(file) - COLOUR).max() <= 6


def test_cmyk() -> None:
    """Ink takes light away: no ink is white, and cyan takes red."""
    for ink, light in (((0, 0, 0, 0), (255, 255, 255)), ((255, 0, 0, 0), (0, 255, 255))):
        data = saved(Image.new("CMYK", (24, 24), ink), "jpeg")
        with Image.open(io.BytesIO(data)) as image:
            assert image.mode == "CMYK"
        assert np.abs(pixels(data) - light).max() <= 3


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_sixteen_bits_are_scaled_not_clipped(kind: str) -> None:
    values = np.repeat(np.linspace(0, 65535, 16).astype(np.uint16)[None], 16, axis=0)
    found = pixels(saved(Image.fromarray(values), kind))
    assert np.array_equal(found, np.repeat((values // 256)[..., None], 3, axis=-1))


def test_palettes_and_single_bits() -> None:
    palette = Image.new("RGB", (16, 16), COLOUR).convert("P", palette=Image.Palette.ADAPTIVE)
    assert np.abs(pixels(saved(palette)) - COLOUR).max() <= 2
    assert (pixels(saved(Image.new("1", (16, 16), 1))) == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(mode: str) -> None:
    if mode == "P":
        image = Image.new("RGB", (16, 16), COLOUR).quantize(4)
        data = saved(image, transparency=image.getpixel((0, 0)))
    else:
        data = saved(Image.new(mode, (16, 16), 0))
    assert (pixels(data) == 255).all()


def test_grey() -> None:
    assert (
        np.abs(pixels(saved(Image.new("RGB", (16, 16), (255, 0, 0))), channels=1) - 76).max() <= 1
    )
    assert (pixels(saved(Image.new("L", (16, 16), 77))) == 77).all()


def test_the_middle_of_a_long_image_is_kept() -> None:
    """A third red, a third green, a third blue: after the crop to a square only green is left."""
    image = Image.new("RGB", (96, 32), (255, 0, 0))
    image.paste((0, 255, 0), (32, 0, 64, 32))
    image.paste((0, 0, 255), (64, 0, 96, 32))
    for turned in (image, image.transpose(Image.Transpose.ROTATE_90)):
        assert (pixels(saved(turned), size=32) == (0, 255, 0)).all()
        assert np.abs(pixels(saved(turned)) - (0, 255, 0))[2:-2, 2:-2].max() <= 1


def test_a_large_jpeg_is_decoded_as_well_as_a_lossless_copy() -> None:
    """Decoding a JPEG at a smaller scale is only faster."""
    ramp = np.linspace(0, 255, 800).astype(np.uint8)
    image = Image.fromarray(
        np.stack([np.tile(ramp, (800, 1)), np.tile(ramp, (800, 1)).T] * 2, -1)[..., :3]
    )
    difference = pixels(saved(image, "jpeg", quality=95)) - pixels(saved(image))
    assert np.abs(difference).max() <= 6


def test_a_camera_held_upright() -> None:
    image = Image.new("RGB", (32, 32), (255, 255, 255))
    image.paste((0, 0, 0), (0, 0, 32, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to see it right
    found = pixels(saved(image, "jpeg", exif=exif, quality=95), size=32)
    assert found[:, 20:].max() < 30 and found[:, :12].min() > 225


def reason(data: bytes | Path) -> str:
    with pytest.raises(InvalidItemError) as caught:
        pixels(data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_image() -> None:
    assert "no image" in reason(b"")
    assert "no image" in reason(b"some text, which is long enough to be taken for something else")


@pytest.mark.parametrize("kind", ["png", "jpeg", "bmp"])
def test_truncated(kind: str) -> None:
    made = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = saved(Image.fromarray(made), kind)
    assert "cannot be decoded" in reason(data[: len(data) // 2])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert reason(tmp_path / "a.png") == "it cannot be decoded: No such file or directory"


@pytest.mark.parametrize("side", [110, 200])
def test_decompression_bombs(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow only warns of the first and refuses the second."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    data = saved(Image.new("RGB", (side, side)))
    assert reason(data) == "it has more than 10,000 pixels: a decompression bomb"
    assert (pixels(saved(Image.new("RGB", (100, 100)))) == 0).all()


def test_a_bomb_is_not_unpacked() -> None:
    """A header of a few bytes that asks for 30 gigabytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 999))
    )
    assert "decompression bomb" in reason(data)


def test_numbers_of_unknown_range() -> None:
    assert "mode F" in reason(saved(Image.new("F", (16, 16), 0.5), "tiff"))
    assert "mode I" in reason(saved(Image.new("I", (16, 16), 70000), "tiff"))


_NOISE = np.random.default_rng(1).integers(0, 256, (24, 24, 3), dtype=np.uint8)
_WHOLE = {
    kind: saved(Image.fromarray(_NOISE), kind) for kind in ("png", "jpeg", "gif", "tiff", "webp")
}


@given(
    kind=st.sampled_from(sorted(_WHOLE)),
    cut=st.floats(0, 1),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=4),
)
def test_damaged_files_give_pixels_or_a_reason(
    kind: str, cut: float, flips: list[tuple[float, int]]
) -> None:
    data = bytearray(_WHOLE[kind][: int(cut * len(_WHOLE[kind]))])
    for place, value in flips:
        if data:
            data[int(place * len(data))] = value
    try:
        pixels(bytes(data))
    except InvalidItemError as error:
        assert str(error)
