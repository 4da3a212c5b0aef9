"""`fractus brain`: what lanes have grown together."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fractus_core.brain.directory import BrainDirectory


@click.group()
def brain() -> None:
    """Look at a brain: one set of core weights that several runs grow together."""


@brain.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(directory: Path, as_json: bool) -> None:
    """Check the brain in DIRECTORY and show its lanes.

    The weights are read and compared with their checksums.

    \b
    --json prints {"directory", "id", "rule", "exchanges", "frontends": {KEY: NAME}, "lanes":
    {NAME: {"frontends", "run", "alive", "steps", "tokens", "exchanges", "joined", "last_exchange",
    "time", "n", "drift"}}}. "drift" is how far the lane's core was from the brain's at its last
    exchange, as a part of the brain's size, and "n" how many lanes shared in that.
    """
    # Torch is slow to import, so only now.
    from fractus_core.brain.directory import BrainDirectory

    report = _report(BrainDirectory(directory))
    if as_json:
        click.echo(json.dumps(report))
        return

    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    lanes = len(report["lanes"])
    console.print(
        f"{directory}: {report['exchanges']:,} exchanges by {lanes} lane{(lanes != 1) * 's'}, "
        f"merged by {report['rule']}; the weights are whole",
        markup=False,
        soft_wrap=True,
    )
    columns = ("lane", "front-ends", "now", "steps", "tokens", "exchanges", "last", "drift")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    for column in table.columns[3:]:
        column.justify = "right"
    for name, lane in report["lanes"].items():
        table.add_row(
            name,
            ", ".join(lane["frontends"]),
            "training" if lane["alive"] else "stopped",
            f"{lane['steps']:,}",
            f"{lane['tokens']:,}",
            f"{lane['exchanges']:,}",
            _ago(lane["time"]),
            f"{lane['drift']:.2%}",
        )
    console.print(table)


def _report(directory: BrainDirectory) -> dict[str, Any]:
    config = directory.config()
    with directory.locked():
        content = directory.read()
        lanes = {
            name: dataclasses.asdict(lane) | {"alive": directory.is_alive(name)}
            for name, lane in content.lanes.items()
        }
    return {
        "directory": str(directory.path),
        "id": config.id,
        "rule": config.rule,
        "exchanges": sum(lane["exchanges"] for lane in lanes.values()),
        "frontends": {key: plugged.name for key, plugged in content.frontends.items()},
        "lanes": lanes,
    }


def _ago(moment: float) -> str:
    seconds = max(0, round(time.time() - moment))
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"
