"""What the command line has to offer: Fractus's own commands, and the installed plugins."""

from __future__ import annotations

import traceback

import click

from fractus_core.plugins.discovery import discover
from fractus_core.plugins.registry import Registry
from fractus_core.plugins.specs import CommandSpec

BUILTINS = (
    CommandSpec(
        name="run",
        summary="Train an engine, or resume a run.",
        target="fractus_core.cli.run:run",
    ),
    CommandSpec(
        name="eval",
        summary="Evaluate a run's checkpoint.",
        target="fractus_core.cli.evaluate:evaluate",
    ),
    CommandSpec(
        name="grow",
        summary="Make a larger run that goes on where a smaller one is.",
        target="fractus_core.cli.grow:grow",
    ),
    CommandSpec(
        name="brain",
        summary="Show what several runs have grown together.",
        target="fractus_core.cli.brain:brain",
    ),
    CommandSpec(
        name="plugins",
        summary="Show the installed plugins and what each adds.",
        target="fractus_core.cli.plugins:plugins",
    ),
    CommandSpec(
        name="frontends",
        summary="Show the installed front-ends and their options.",
        target="fractus_core.cli.plugins:frontends",
    ),
    CommandSpec(
        name="trainers",
        summary="Show the installed trainers and their options.",
        target="fractus_core.cli.plugins:trainers",
    ),
)
"""Fractus's own commands, in the order in which help shows them."""


def registry(context: click.Context | None = None, *, report: bool = True) -> Registry:
    """The installed plugins, discovered at the first call in a command.

    Their problems are told then, one line each on stderr, unless `report` is false because the
    command shows them itself. With `--debug`, tracebacks are printed in any case.
    """
    root = (context or click.get_current_context()).find_root()
    found: Registry | None = root.meta.get(__name__)
    if found is None:
        found = root.meta[__name__] = discover(builtins=BUILTINS)
        for problem in found.problems:
            if report and not root.resilient_parsing:  # nor where a shell asks for completions
                click.echo(f"fractus: {problem}", err=True)
            if root.params.get("debug") and problem.error is not None:
                traceback.print_exception(problem.error)
    return found
