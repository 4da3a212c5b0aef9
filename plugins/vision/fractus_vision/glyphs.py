"""Letters and digits, drawn as they are read: endless, and each decided by seed and number.

Pillow draws every character once. A picture is one of these, turned, scaled and moved, in a random
colour on another, with noise.
"""

from __future__ import annotations

import hashlib
import json
import string
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fractus_core.api import WHOLE, Shard, Split
from fractus_vision.draws import Int64, draw, fractions

CLASSES = tuple(string.digits + string.ascii_uppercase)
HELD_OUT = 4096
"""Pictures in a pass over what is held out."""
TURN, SCALE, MOVE, NOISE = 0.35, (0.7, 1.1), 0.12, 0.25
"""Radians to either side, heights of the character, parts of the side, most noise."""
_PARAMETERS = 3
"""Raw draws that decide a picture but for its noise: 12 fractions."""
_TRAIN, _HELD_OUT = 0, 1


class Glyphs:
    """Pictures by number; satisfies `fractus_vision.source.Images`."""

    augmented = False
    classes = CLASSES

    def __init__(
        self, split: Split, *, size: int, channels: int, seed: int, shard: Shard = WHOLE
    ) -> None:
        """What is held out is the same for every seed, and drawn from a sequence of its own."""
        train = split == "train"
        self.count = None if train else HELD_OUT
        self._seed = (_TRAIN, seed) if train else (_HELD_OUT,)
        self._shard = shard if train else WHOLE
        self._size, self._channels = size, channels
        identity = [
            hashlib.sha256(_masks(size).numpy().tobytes()).hexdigest(),
            channels,
            self._seed,
            str(self._shard),
        ]
        self.fingerprint = hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def take(self, indices: Int64) -> tuple[npt.NDArray[np.uint8], Int64]:
        """Pictures (n, size, size, channels) and their classes (n,)."""
        noise_draws = -(-self._size * self._size * self._channels // 8)
        numbers = indices * self._shard.count + self._shard.index
        raw = draw(self._seed, numbers, _PARAMETERS + noise_draws)
        u = torch.from_numpy(fractions(raw[:, :_PARAMETERS].copy()))
        labels = (u[:, 0] * len(CLASSES)).long()
        shape = self._place(_masks(self._size)[labels], u[:, 1:5]).unsqueeze(-1)
        ink, paper = _colours(u[:, 5:8], u[:, 8:11], light=u[:, 11] < 0.5)
        picture = paper + shape * (ink - paper)
        if self._channels == 1:
            picture = picture.mean(-1, keepdim=True)
        noise = torch.from_numpy(raw[:, _PARAMETERS:].astype("<u8", copy=False).view(np.uint8))
        noise = noise[:, : picture[0].numel()].view_as(picture) / 255 - 0.5
        picture = (picture + NOISE * noise).clamp(0, 1)
        return (picture * 255).round().byte().numpy(), labels.numpy()

    def _place(self, masks: Tensor, u: Tensor) -> Tensor:
        """Turn, scale and move masks (n, A, A), by fractions u (n, 4), to (n, size, size)."""
        angle = (2 * u[:, 0] - 1) * TURN
        scale = SCALE[0] + u[:, 1] * (SCALE[1] - SCALE[0])
        cos, sin = angle.cos() / scale, angle.sin() / scale
        move = (4 * u[:, 2:4] - 2) * MOVE  # of a side of length 2
        rows = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], 1)
        maps = torch.cat([rows, -rows @ move.unsqueeze(-1)], dim=-1)
        grid = F.affine_grid(maps, [len(u), 1, self._size, self._size], align_corners=False)
        placed = F.grid_sample(masks.unsqueeze(1), grid, align_corners=False)
        return placed.squeeze(1)


@cache
def _masks(size: int) -> Tensor:
    """(classes, size, size): how much ink each character leaves where, from 0 to 1."""
    font = ImageFont.load_default(0.9 * size)
    assert isinstance(font, ImageFont.FreeTypeFont), "Pillow comes with FreeType"
    masks = []
    for character in CLASSES:
        image = Image.new("L", (size, size))
        middle = (size / 2, size / 2)
        left, top, right, bottom = font.getbbox(character, anchor="mm")
        at = (middle[0] - (left + right) / 2, middle[1] - (top + bottom) / 2)
        ImageDraw.Draw(image).text(at, character, fill=255, font=font, anchor="mm")
        masks.append(np.asarray(image, np.float32) / 255)
    return torch.from_numpy(np.stack(masks))


def _colours(ink: Tensor, paper: Tensor, *, light: Tensor) -> tuple[Tensor, Tensor]:
    """Fractions (n, 3) to two colours that can be told apart, (n, 1, 1, 3) each."""
    dark, bright = 0.4 * ink, 0.6 + 0.4 * paper
    light = light.unsqueeze(-1)
    ink, paper = torch.where(light, dark, bright), torch.where(light, bright, dark)
    return ink[:, None, None], paper[:, None, None]
