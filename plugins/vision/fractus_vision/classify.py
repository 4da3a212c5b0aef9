"""`fractus classify`: what a trained run sees in images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fractus_core.api import FractusError

_BAR = 24
"""Characters of a bar that means certainty."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument(
    "images", metavar="IMAGE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--top",
    default=5,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many classes to show, the likeliest first.",
)
@click.option("--watch", is_flag=True, help="Show how the answer forms, patch by patch.")
@click.option("--frontend", help="Which, where there are several.  [default: the first]")
@click.option("--allow-previous", is_flag=True, help="Use an older checkpoint if need be.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list with one object per image.")
def classify(
    run: Path,
    images: tuple[Path, ...],
    top: int,
    watch: bool,
    frontend: str | None,
    allow_previous: bool,
    as_json: bool,
) -> None:
    """Name the class of each IMAGE with the newest weights of RUN, or of a brain.

    --json: [{"image", "class", "confidence", "probabilities": {CLASS: P, ...}}, ...], the likeliest
    first; with --watch each also has "watch": [{"patch", "row", "column", "probabilities"}, ...].
    "confidence" is the engine's own estimate that the class is right.
    """
    # Here, so that `fractus --help` stays fast.
    import torch

    from fractus_core.api import Stream, open_run

    opened = open_run(run, allow_previous=allow_previous)  # which tells if images cannot be read
    from fractus_vision.decoding import InvalidItemError, decode, refusing_bombs
    from fractus_vision.frontend import VisionFrontend, look

    engine, eyes = opened.model.engine, opened.frontend(VisionFrontend, frontend, does="sees")

    reports: list[dict[str, Any]] = []
    for file in images:
        try:
            with refusing_bombs():
                pixels = decode(file, size=eyes.size, channels=eyes.channels)
        except InvalidItemError as error:
            raise FractusError(f"{file}: {error}") from None
        image = torch.tensor(pixels).permute(2, 0, 1).unsqueeze(0)
        stream = Stream(engine, eyes)
        answers, confidence = look(stream, image)
        answers = answers[0].softmax(-1)
        told = [_likeliest(answer.tolist(), eyes.classes, top) for answer in answers]
        found = {
            "image": str(file),
            "class": next(iter(told[-1])),
            "confidence": round(confidence.item(), 4),
            "probabilities": told[-1],
        }
        if watch:
            places = [divmod(place, eyes.stem.side) for place in eyes.order.tolist()]
            found["watch"] = [
                {"patch": i, "row": row, "column": column, "probabilities": answer}
                for i, ((row, column), answer) in enumerate(zip(places, told, strict=True), 1)
            ]
        reports.append(found)
        if not as_json:
            click.echo("\n".join(_lines(found)))
    if as_json:
        click.echo(json.dumps(reports))


def _likeliest(probabilities: list[float], classes: list[str], top: int) -> dict[str, float]:
    order = sorted(range(len(classes)), key=lambda i: -probabilities[i])[:top]
    return {classes[i]: round(probabilities[i], 4) for i in order}


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['image']}: {found['class']} (confidence {found['confidence']:.2f})"]
    for step in found.get("watch", ()):
        shown = ", ".join(f"{name} {p:.0%}" for name, p in step["probabilities"].items())
        lines.append(f"  patch {step['patch']:>3} ({step['row']}, {step['column']})  {shown}")
    width = max(map(len, found["probabilities"]))
    for name, p in found["probabilities"].items():
        lines.append(f"  {name:<{width}}  {p:6.1%}  {'#' * round(p * _BAR)}")
    return lines
