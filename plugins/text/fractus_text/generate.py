"""`fractus generate`: text from a trained run."""

from __future__ import annotations

import codecs
import json
import sys
import time
from itertools import islice
from pathlib import Path

import click

from fractus_core.api import finite


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="", help="Text to go on from; read whole, however long.")
@click.option(
    "--max-new", default=200, show_default=True, type=click.IntRange(min=1), help="Most tokens."
)
@click.option(
    "--temperature",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0, 100),
    callback=finite,
    help="0 takes the likeliest token.",
)
@click.option(
    "--top-k",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Choose among so many; 0: all.",
)
@click.option(
    "--top-p",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    callback=finite,
    help="Choose among the likeliest with this probability together.",
)
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    type=click.FloatRange(1, 100),
    callback=finite,
    help="Above 1 makes what was there already less likely.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1))
@click.option(
    "--compile/--no-compile",
    "compiled",
    default=False,
    help="Compile first (with a C++ compiler, some 20 s): several times faster then.",
)
@click.option("--frontend", help="Which, where there are several.  [default: the first]")
@click.option("--allow-previous", is_flag=True, help="Use an older checkpoint if need be.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of streaming.")
def generate(
    run: Path,
    prompt: str,
    max_new: int,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    seed: int,
    compiled: bool,
    frontend: str | None,
    allow_previous: bool,
    as_json: bool,
) -> None:
    """Go on from a prompt with the newest weights of RUN, or of a brain.

    It ends with the text, or at --max-new.

    With --json: {"prompt", "text", "tokens", "stopped": "end" or "max_new", "tokens_per_second"}.
    """
    # Here, so that `fractus --help` stays fast.
    import torch

    from fractus_core.api import Stream, open_run
    from fractus_text.encoding import encode_text
    from fractus_text.frontend import TextFrontend
    from fractus_text.sampling import Sampler, write

    opened = open_run(run, allow_previous=allow_previous)
    engine, texts = opened.model.engine, opened.frontend(TextFrontend, frontend, does="writes text")
    encoding = texts.encoding
    sampler = Sampler(temperature, top_k, top_p, repetition_penalty, seed)
    # An empty prompt is the end of whatever came before.
    start = encode_text(encoding, prompt).astype("int64") if prompt else [encoding.eot_token]
    stream = Stream(engine, texts)
    if compiled:
        stream.compile()
    tokens = write(stream, torch.as_tensor(start), sampler, stop=encoding.eot_token)

    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    begun = time.perf_counter()
    count, pieces = 0, []
    if not as_json:
        click.echo(prompt, nl=False)
    for token in islice(tokens, max_new):
        piece = decoder.decode(encoding.decode_single_token_bytes(token))
        count += 1
        pieces.append(piece)
        if not as_json:
            click.echo(piece, nl=False)
            sys.stdout.flush()
    pieces.append(decoder.decode(b"", final=True))
    if not as_json:
        click.echo(pieces[-1])
        return
    report = {
        "prompt": prompt,
        "text": "".join(pieces),
        "tokens": count,
        "stopped": "max_new" if count == max_new else "end",
        "tokens_per_second": round(count / (time.perf_counter() - begun), 1),
    }
    click.echo(json.dumps(report))
