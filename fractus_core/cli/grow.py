"""`fractus grow`: a larger run that goes on where a smaller one is."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fractus_core.cli import values
from fractus_core.cli.installed import registry
from fractus_core.errors import FractusError
from fractus_core.growth.target import changes, target

if TYPE_CHECKING:
    from fractus_core.growth.model import Step


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--to", "preset", metavar="PRESET", callback=values.preset, help=values.PRESET_HELP)
@values.settings_option
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the grown run.",
)
@click.option("--allow-previous", is_flag=True, help="Pass over damaged checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def grow(
    run: Path,
    preset: dict[str, Any],
    settings: dict[str, Any],
    out: Path,
    allow_previous: bool,
    as_json: bool,
) -> None:
    """Grow RUN in width, depth, experts, rank or d_ff.

    The new run has RUN's trainer, data, streams and optimizer. How far each kind of growth moved
    the answers is measured on held-out data.

    \b
    --json prints {"directory", "optimizer", "steps": [{"kind", "changes": {FIELD: [OLD, NEW]},
    "drift": {FRONTEND: {"logits", "kl", "loss_before", "loss_after"}}}]}. "optimizer" is false
    where it starts anew.
    """
    if not preset and not settings:
        raise click.UsageError("grow to what? give --to PRESET or --set FIELD=VALUE")

    # Torch is slow to import, so only now.
    from fractus_core.growth.run import grow_run
    from fractus_core.runs.derive import Origin
    from fractus_core.runs.directory import RunDirectory

    directory = RunDirectory(out)
    directory.require_absent()
    origin = Origin.read(run, allow_previous=allow_previous)
    engine = target(origin.config.engine, preset | settings)
    if not changes(origin.config.engine, engine):
        raise FractusError(f"{run} has these sizes already: there is nothing to grow")
    steps: list[Step] = []

    def tell(step: Step) -> None:
        steps.append(step)
        for line in () if as_json else report(step):
            click.echo(line)

    carried = grow_run(registry(), origin, engine, directory, tell=tell)
    if as_json:
        done = [
            {
                "kind": step.kind,
                "changes": step.changes,
                "drift": {name: asdict(drift) for name, drift in step.drift.items()},
            }
            for step in steps
        ]
        click.echo(json.dumps({"directory": str(out), "optimizer": carried, "steps": done}))
        return
    click.echo(
        f"grown into {out}; the optimizer {'goes on' if carried else 'starts anew'}\n"
        f"go on with\n  fractus run --resume {shlex.quote(str(out))} --minutes 3"
    )


def report(step: Step) -> list[str]:
    """What was done, and what that did to the answers of each front-end."""
    return [str(step), *(f"  {name}: {drift}" for name, drift in step.drift.items())]
