"""`fractus retokenize`: another tokenizer for a trained run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--tokenizer", required=True, help="As for --text.tokenizer: a name or a file.")
@click.option(
    "-o", "--out", required=True, type=click.Path(path_type=Path), help="Directory of the new run."
)
@click.option("--data", help="Other data to go on with, instead of the run's.")
@click.option(
    "--rows",
    default="composed",
    show_default=True,
    type=click.Choice(("composed", "fresh")),
    help="The new tokens' vectors: made of the old ones, or drawn as for a new run.",
)
@click.option("--frontend", help="Which, where several read text.  [default: the first]")
@click.option("--allow-previous", is_flag=True, help="Pass over damaged checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def retokenize(
    run: Path,
    tokenizer: str,
    out: Path,
    data: str | None,
    rows: str,
    frontend: str | None,
    allow_previous: bool,
    as_json: bool,
) -> None:
    """Make a run that goes on where RUN is, with another tokenizer.

    The engine's weights stay, and what the optimizer knows of them. A new token's vector is
    composed from those of the old tokens that it consists of. RUN is not changed.

    \b
    --json prints {"directory", "frontend", "tokenizer": [OLD, NEW], "tokens": [OLD, NEW],
    "rows": {"single", "composed", "fresh"}, "scale", "bits_per_byte": [BEFORE, AFTER], "unread",
    "optimizer"}. "scale" is what the composed vectors were multiplied by, "unread" says why there
    is no BEFORE, if there is none, and "optimizer" is false where it starts anew.
    """
    # Here, so that `fractus --help` stays fast.
    from fractus_core.api import FractusError, Refit
    from fractus_text.calibration import calibrate
    from fractus_text.composition import Composed, compose
    from fractus_text.frontend import TextFrontend
    from fractus_text.tokenizers import same

    refit = Refit.begin(
        run,
        out,
        TextFrontend,
        name=frontend,
        does="reads text",
        options={"tokenizer": tokenizer},
        data=data,
        allow_previous=allow_previous,
    )
    old, new = refit.old.model.frontends[refit.name], refit.lane.frontend
    assert isinstance(old, TextFrontend)
    assert isinstance(new, TextFrontend)
    if same(old.encoding, new.encoding):
        raise FractusError(f"{run} has the tokenizer {tokenizer} already; name another")

    limit = refit.origin.config.eval_tokens
    unread = None
    try:
        before = refit.old.evaluate(refit.name, limit=limit)["bits_per_byte"]
    except FractusError as error:
        if data is None:
            raise
        before, unread = None, str(error)  # the new data has what the old tokenizer cannot say
    weight, scale = new.weight.detach(), None
    made = Composed(weight, 0, 0, len(weight))
    if rows == "composed":
        made = compose(old.weight.detach(), old.encoding, new.encoding, weight.cpu())
        weight.copy_(made.rows)
        scale = calibrate(refit.new.model.engine, new, refit.lane.source)
    after = refit.new.evaluate(refit.name, limit=limit)["bits_per_byte"]
    names = [old.encoding.name, new.encoding.name]
    optimizer = refit.write(
        {
            "retokenized_from": str(run.resolve()),
            "frontend": refit.name,
            "tokenizer": names,
            "rows": rows,
        }
    )
    report: dict[str, Any] = {
        "directory": str(out),
        "frontend": refit.name,
        "tokenizer": names,
        "tokens": [old.encoding.n_vocab, new.encoding.n_vocab],
        "rows": {"single": made.single, "composed": made.composed, "fresh": made.fresh},
        "scale": scale,
        "bits_per_byte": [before, after],
        "unread": unread,
        "optimizer": optimizer,
    }
    click.echo(json.dumps(report) if as_json else "\n".join(_told(report)))


def _told(report: dict[str, Any]) -> list[str]:
    (old, new), (few, many), rows = report["tokenizer"], report["tokens"], report["rows"]
    before, after = report["bits_per_byte"]
    change = f"{after:.4f}" if before is None else f"{before:.4f} -> {after:.4f}"
    lines = [
        f"{report['directory']}: {report['frontend']} by {new} ({many:,} tokens) instead of {old} "
        f"({few:,})",
        f"vectors: {rows['single']:,} of one old token, {rows['composed']:,} composed of several, "
        f"{rows['fresh']:,} fresh",
        f"bits per byte on held-out data: {change}, before any training",
    ]
    if report["unread"]:
        lines.append(f"not measured before, for {report['unread']}")
    goes_on = "goes on, but for the vectors'" if report["optimizer"] else "starts anew"
    return [
        *lines,
        f"streams of {report['frontend']} start anew; the optimizer {goes_on}",
        "go on with",
        f"  fractus run --resume {shlex.quote(report['directory'])} --minutes 3",
    ]
