"""Image files to pixels, and a reason where that cannot be."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError
from torchvision.transforms.v2.functional import center_crop, resize

Pixels = npt.NDArray[np.uint8]


class InvalidItemError(ValueError):
    """An image or a label that cannot be used; the message is the reason."""


def suffixes() -> frozenset[str]:
    """Of the files that Pillow can read, lower-case, with the dot."""
    known = Image.registered_extensions()
    return frozenset(suffix for suffix, kind in known.items() if kind in Image.OPEN)


@contextmanager
def refusing_bombs() -> Iterator[None]:
    """Pillow only warns of images that are somewhat too large; within, it raises.

    Not safe to enter in threads, because Python's warning filters are global.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(data: bytes | Path, *, size: int, channels: int) -> Pixels:
    """Pixels (size, size, channels) of an encoded image or a file, the middle of it if it is long.

    CMYK, palettes and 16-bit grey are converted, what is transparent becomes white, and a camera's
    orientation is undone. Enter `refusing_bombs` around it.

    Raises:
        InvalidItemError: it cannot be decoded, is cut short, or is a decompression bomb.
    """
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data) as image:
            image.draft("RGB", (2 * size, 2 * size))  # JPEG: decode no more than is needed
            plain = _plain(ImageOps.exif_transpose(image), "L" if channels == 1 else "RGB")
            fitted = plain if plain.size == (size, size) else _fit(plain, size)
            return np.asarray(fitted).reshape(size, size, channels)
    except InvalidItemError:
        raise
    except UnidentifiedImageError:
        raise InvalidItemError("it is no image that Pillow can read") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise InvalidItemError(
            f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels: a decompression bomb"
        ) from None
    except Exception as error:  # Pillow's readers raise all kinds on damaged files.
        reason = error.strerror if isinstance(error, OSError) else None
        first_line = (reason or str(error) or type(error).__name__).partition("\n")[0]
        raise InvalidItemError(f"it cannot be decoded: {first_line}") from None


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """`image` in 8 bits, grey or colour."""
    if image.mode.startswith("I;16"):  # Pillow would clip, not scale
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise InvalidItemError(
            f"its pixels are 32-bit numbers (mode {image.mode}) of unknown range"
        )
    if image.has_transparency_data:
        colours = image.convert("RGBA")
        image = Image.new("RGBA", image.size, "white")
        image.alpha_composite(colours)
    return image.convert(mode)


def _fit(image: Image.Image, size: int) -> Image.Image:
    """The shorter side becomes `size`, and the middle stays."""
    fitted: Image.Image = center_crop(resize(image, [size]), [size, size])
    return fitted
