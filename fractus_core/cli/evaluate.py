"""`fractus eval`: a run's figures on held-out data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fractus_core.cli.installed import registry
from fractus_core.errors import FractusError


@click.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--data", help="Other data to evaluate on, all of it, instead of what was held out.")
@click.option("--frontend", help="Only this one; needed with --data where there are several.")
@click.option("--tokens", type=click.IntRange(min=1), help="Stop after so many, in whole batches.")
@click.option("--allow-previous", is_flag=True, help="Pass over damaged checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def evaluate(
    run: Path,
    data: str | None,
    frontend: str | None,
    tokens: int | None,
    allow_previous: bool,
    as_json: bool,
) -> None:
    """Evaluate the newest weights of RUN, or of a brain.

    The state is carried through the data (warm), and started anew now and then (cold).

    --json prints {FRONTEND: {"loss_warm", "loss_cold", "loss_uniform", metrics..., "tokens",
    "routing"}}.
    """
    # Torch is slow to import, so only now.
    from fractus_core.runs.opening import open_with

    opened = open_with(registry(), run, allow_previous=allow_previous)
    names = list(opened.frontends)
    if frontend is not None and frontend not in names:
        raise FractusError(f"{run} has no front-end {frontend!r}; it has {', '.join(names)}")
    chosen = names if frontend is None else [frontend]
    if data is not None and len(chosen) > 1:
        raise click.UsageError(
            f"--data for which front-end? give --frontend, of {', '.join(names)}"
        )
    if data is None:
        report = {name: opened.evaluate(name, limit=tokens) for name in chosen}
    else:
        report = {
            name: opened.on(name, data).evaluate(name, split="all", limit=tokens) for name in chosen
        }
    if as_json:
        click.echo(json.dumps(report))
        return
    for name, figures in report.items():
        click.echo("\n".join(_table(name, figures, data or "held-out data")))


def _table(name: str, figures: dict[str, Any], data: str) -> list[str]:
    lines = [f"{name}, {figures['tokens']:,} tokens of {data}"]
    for key, value in figures.items():
        if isinstance(value, float):
            lines.append(f"  {key.replace('_', ' '):<20} {value:.4f}")
    for i, block in enumerate(figures["routing"]["blocks"]):
        lines.append(
            f"  block {i}: routing entropy {block['entropy']:.3f}, {block['dead']} dead experts, "
            f"order parameter {block['order_parameter']:.3f}"
        )
    ratio = figures["routing"]["lb_ceiling_ratio"]
    lines.append(f"  {'load-balance loss':<20} {ratio:.4f} times a collapsed router's")
    return lines
