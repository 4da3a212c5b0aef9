"""`fractus listen`: what a trained run hears in wav files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("wavs", metavar="WAV...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--top",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="How many classes to show, the likeliest first.",
)
@click.option("--allow-previous", is_flag=True, help="Use an older checkpoint if need be.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list with one object per file.")
def listen(
    run: Path, wavs: tuple[Path, ...], top: int, allow_previous: bool, as_json: bool
) -> None:
    """Name the class of each WAV with the newest weights of RUN.

    --json: [{"file", "class", "probabilities": {CLASS: P, ...}}, ...], the likeliest first.
    """
    # Here, so that `fractus --help` stays fast.
    from fractus_audio.frontend import AudioFrontend, listen_to
    from fractus_core.api import Stream, open_run

    opened = open_run(run, allow_previous=allow_previous)
    frontend = opened.frontend(AudioFrontend, None, does="hears")
    stream = Stream(opened.model.engine, frontend)
    reports: list[dict[str, Any]] = []
    for file in wavs:
        answers = listen_to(stream, frontend.hear(file))[0].softmax(-1)
        best = answers.topk(min(top, len(frontend.classes)))
        likeliest = {
            frontend.classes[number]: round(probability, 4)
            for number, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        }
        reports.append(
            {"file": str(file), "class": next(iter(likeliest)), "probabilities": likeliest}
        )
        if not as_json:
            shown = ", ".join(f"{name} {p:.1%}" for name, p in likeliest.items())
            click.echo(f"{file}: {shown}")
    if as_json:
        click.echo(json.dumps(reports))
