"""What `fractus run --stages` and `--grow-from` do. Imports torch."""

from __future__ import annotations

import click

from fractus_core.cli.grow import report
from fractus_core.cli.installed import registry
from fractus_core.cli.training import train
from fractus_core.growth.ladder import Ladder
from fractus_core.growth.model import Step


def climb(
    ctx: click.Context,
    ladder: Ladder,
    *,
    tensorboard: bool,
    as_json: bool,
    allow_previous: bool = False,
) -> None:
    """Train what is left of `ladder`; exits with 130 if it was interrupted."""
    for run in ladder.climb(registry(), tell=tell, allow_previous=allow_previous):
        train(
            ctx,
            registry(),
            run,
            tensorboard=tensorboard,
            as_json=as_json,
            more_to_come=run.directory.path.name != ladder.stages[-1],
        )


def tell(step: Step) -> None:
    for line in report(step):
        click.echo(line, err=True)
