"""What a model got right and wrong, as pictures: a confusion matrix and its worst mistakes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fractus_core.api import write_atomically

MISTAKES, ACROSS = 40, 8
"""On the contact sheet: how many, and how many in a row."""
_THUMBNAIL, _CAPTION = 96, 30
_PAPER, _INK, _WRONG = (255, 255, 255), (20, 20, 20), (178, 24, 43)
_RIGHT = (33, 102, 172)


class Seen:
    """Counts every answer, and keeps the images of the worst ones."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.confusion = torch.zeros(len(classes), len(classes), dtype=torch.int64)
        """[truth, answer]."""
        self.mistakes: list[tuple[float, Tensor, int, int, float]] = []
        """The worst: probability of the truth, image (channels, size, size) uint8, truth, answer,
        probability of the answer."""

    @property
    def count(self) -> int:
        return int(self.confusion.sum())

    def add(self, images: Tensor, logits: Tensor, targets: Tensor) -> None:
        """Images (B, channels, size, size), their logits (B, classes), their classes (B,)."""
        probabilities = logits.float().softmax(-1).cpu()
        targets = targets.cpu()
        best, answers = probabilities.max(-1)
        flat = targets * len(self.classes) + answers
        self.confusion += flat.bincount(minlength=self.confusion.numel()).view_as(self.confusion)
        truth = probabilities.gather(1, targets[:, None])[:, 0]
        for i in (answers != targets).nonzero()[:, 0].tolist():
            kept = (truth[i].item(), images[i], int(targets[i]), int(answers[i]), best[i].item())
            self.mistakes.append(kept)
        self.mistakes.sort(key=lambda mistake: mistake[0])
        del self.mistakes[MISTAKES:]

    def summary(self) -> str:
        """One line: how often it was right, and what it confuses most."""
        right = self.confusion.diagonal().sum().item() / self.count
        line = f"{right:.1%} of {self.count:,} images right"
        wrong = self.confusion.clone().fill_diagonal_(0)
        if not wrong.any():
            return line
        most = wrong.flatten().topk(min(3, int((wrong > 0).sum())))
        pairs = [divmod(place, len(self.classes)) for place in most.indices.tolist()]
        told = (
            f"{self.classes[truth]} as {self.classes[answer]} ({count})"
            for (truth, answer), count in zip(pairs, most.values.tolist(), strict=True)
        )
        return f"{line}; most often wrong: {', '.join(told)}"


def draw_pictures(seen: Seen, directory: Path) -> None:
    """`confusion.png`, and `mistakes.png` if there are any."""
    _save(_confusion_matrix(seen), directory / "confusion.png")
    if seen.mistakes:
        _save(_contact_sheet(seen), directory / "mistakes.png")


def _save(image: Image.Image, file: Path) -> None:
    data = io.BytesIO()
    image.save(data, "png")
    write_atomically(file, data.getvalue())


def _confusion_matrix(seen: Seen) -> Image.Image:
    """A row for each class, a column for each answer; blue is right and red is wrong."""
    n, font = len(seen.classes), ImageFont.load_default(11)
    cell = max(4, min(44, 1200 // n))
    margin = 12 + max(int(font.getlength(name)) for name in seen.classes)
    side = margin + n * cell
    image = Image.new("RGB", (side, side), _PAPER)
    cells = Image.fromarray(_cell_colours(seen.confusion).numpy())
    image.paste(cells.resize((n * cell, n * cell), Image.Resampling.NEAREST), (margin, margin))
    if cell < 12:  # no room for names
        return image
    rows = ImageDraw.Draw(image)
    answers = Image.new("RGB", (margin, n * cell), _PAPER)  # written as rows, then turned
    columns = ImageDraw.Draw(answers)
    for number, name in enumerate(seen.classes):
        middle = (number + 0.5) * cell
        rows.text((margin - 6, margin + middle), name, _INK, font, anchor="rm")
        columns.text((margin - 6, n * cell - middle), name, _INK, font, anchor="rm")
    image.paste(answers.transpose(Image.Transpose.ROTATE_270), (margin, 0))
    if cell >= 24:
        for truth, answer in seen.confusion.nonzero().tolist():
            at = margin + (answer + 0.5) * cell, margin + (truth + 0.5) * cell
            rows.text(at, str(int(seen.confusion[truth, answer])), _INK, font, anchor="mm")
    return image


def _cell_colours(confusion: Tensor) -> Tensor:
    """(classes, classes, 3) uint8: from paper to a colour, by the share of the row's truth."""
    shares = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    weight = torch.where(confusion > 0, 0.15 + 0.65 * shares, 0.0).unsqueeze(-1)
    right = torch.eye(len(confusion), dtype=torch.bool).unsqueeze(-1)
    colour = torch.where(right, torch.tensor(_RIGHT), torch.tensor(_WRONG))
    paper = torch.tensor(_PAPER)
    return (paper + weight * (colour - paper)).round().byte()


def _contact_sheet(seen: Seen) -> Image.Image:
    """The worst first, each with what it is and what it was taken for."""
    font = ImageFont.load_default(11)
    width, height = _THUMBNAIL + 8, _THUMBNAIL + _CAPTION + 8
    across = min(ACROSS, len(seen.mistakes))
    down = -(-len(seen.mistakes) // across)
    sheet = Image.new("RGB", (across * width + 8, down * height + 8), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for place, (_, pixels, truth, answer, probability) in enumerate(seen.mistakes):
        left, top = 8 + place % across * width, 8 + place // across * height
        image = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy())
        kind = Image.Resampling.NEAREST if image.width < _THUMBNAIL else Image.Resampling.BILINEAR
        sheet.paste(image.resize((_THUMBNAIL, _THUMBNAIL), kind), (left, top))
        below = top + _THUMBNAIL + 2
        draw.text((left, below), seen.classes[truth], _RIGHT, font)
        draw.text((left, below + 13), f"{seen.classes[answer]} {probability:.0%}", _WRONG, font)
    return sheet
