"""`fractus run`: train, and go on with what was begun."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fractus_core.cli.installed import registry
from fractus_core.cli.options import PluginOptionsCommand
from fractus_core.engine import PRESETS, EngineConfig
from fractus_core.runs.budget import Budget
from fractus_core.runs.cadence import Cadence

DEFAULT_MINUTES = 3.0
BESIDE_RESUME = {
    "resume",
    "allow_previous",
    "tokens",
    "steps",
    "minutes",
    "tensorboard",
    "as_json",
}
"""What may be given with --resume; all else is the run's own, and stands in its run.json."""

T = TypeVar("T")


def _cadence(ctx: click.Context, parameter: click.Parameter, value: str) -> Cadence:
    try:
        return Cadence.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def _preset(ctx: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    return _look_up(ctx, parameter, value, PRESETS)


def _settings(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """FIELD=VALUE pairs, each value of its field's type."""
    types = {field.name: type(field.default) for field in dataclasses.fields(EngineConfig)}
    settings: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not FIELD=VALUE", ctx, parameter)
        kind = _look_up(ctx, parameter, name, types)
        settings[name] = click.types.convert_type(kind).convert(text, parameter, ctx)
    return settings


def _look_up(ctx: click.Context, parameter: click.Parameter, name: str, known: dict[str, T]) -> T:
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    raise click.BadParameter(f"there is no {name!r}; {hint}", ctx, parameter)


@click.command(cls=PluginOptionsCommand, frontends=["text"], trainer="cpu")
@click.option(
    "--data", multiple=True, metavar="[NAME=]DATA", help="What to learn from, per front-end."
)
@click.option(
    "--preset",
    default="stage0",
    show_default=True,
    metavar="NAME",
    callback=_preset,
    help=f"Size of the engine: {', '.join(PRESETS)}.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    callback=_settings,
    help="A field of EngineConfig, such as n_layers=4. Repeatable.",
)
@click.option("--tokens", type=click.IntRange(min=1), help="Stop after so many tokens.")
@click.option("--steps", type=click.IntRange(min=1), help="Stop after so many optimizer steps.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    help=f"Stop after so much training.  [default: {DEFAULT_MINUTES:g} if nothing else is given]",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0, max=2**63 - 1))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory of the run.  [default: a new one in runs/]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Go on with this run; larger --tokens, --steps or --minutes extend it.",
)
@click.option(
    "--allow-previous",
    is_flag=True,
    help="With --resume: pass over damaged checkpoints to the newest good one.",
)
@click.option(
    "--checkpoint-every",
    default="60s",
    show_default=True,
    callback=_cadence,
    help="So many steps (500), or so long (90s, 10m, 1h).",
)
@click.option(
    "--eval-every",
    default=1000,
    show_default=True,
    type=click.IntRange(min=1),
    help="Steps between evaluations on held-out data.",
)
@click.option(
    "--eval-tokens",
    default=65536,
    show_default=True,
    type=click.IntRange(min=1),
    help="Held-out tokens to read in each; the last one reads them all.",
)
@click.option(
    "--log-every",
    default=10,
    show_default=True,
    type=click.IntRange(min=1),
    help="Steps to a line of metrics.jsonl.",
)
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard events beside the metrics.")
@click.option(
    "--dry-run", is_flag=True, help="Resolve, check and estimate; write and train nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    frontends: dict[str, dict[str, Any]],
    trainer: dict[str, dict[str, Any]],
    **options: Any,
) -> None:
    """Train an engine on data, or go on with a run.

    With no options, a small engine reads the English and the Python that came with this Python
    installation, for three minutes.

    --json prints {"directory", "finished", "steps", "tokens", "seconds"} and, when finished, what
    summary.json holds.
    """
    tokens, steps, minutes = options["tokens"], options["steps"], options["minutes"]
    try:
        budget = Budget(tokens, steps, minutes and minutes * 60)
    except ValueError as error:  # nan passes every range
        raise click.BadParameter(str(error), ctx, param_hint="--minutes") from error
    try:
        fields = options["preset"] | options["settings"]
        # The reference dynamics is one choice, not eight.
        reference = fields.get("dynamics") == "reference"
        engine = (EngineConfig.reference if reference else EngineConfig)(**fields)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="--set") from error
    if options["resume"] is not None:
        _refuse_beside_resume(ctx)
    elif options["allow_previous"]:
        raise click.UsageError("--allow-previous goes with --resume", ctx)

    # Torch is slow to import, so only now.
    from fractus_core.cli.training import dry_run, make_config, train
    from fractus_core.runs.directory import RunDirectory
    from fractus_core.runs.metrics import require_tensorboard
    from fractus_core.runs.run import Run

    if options["tensorboard"]:
        require_tensorboard()

    if options["resume"] is not None:
        directory = RunDirectory(options["resume"])
        with directory.locked():
            resumed = Run.resume(
                registry(),
                directory,
                budget=None if budget.unlimited else budget,
                allow_previous=options["allow_previous"],
            )
            train(
                ctx,
                registry(),
                resumed,
                tensorboard=options["tensorboard"],
                as_json=options["as_json"],
            )
        return

    directory = RunDirectory(options["out"] or _new_directory([*frontends, *trainer]))
    if not options["dry_run"]:
        directory.require_absent()
    config = make_config(
        registry(),
        engine,
        frontends,
        trainer,
        data=_data(ctx, options["data"], list(frontends)),
        budget=Budget(seconds=DEFAULT_MINUTES * 60) if budget.unlimited else budget,
        **{
            name: options[name]
            for name in ("seed", "log_every", "eval_every", "eval_tokens", "checkpoint_every")
        },
    )
    if options["dry_run"]:
        dry_run(registry(), directory, config, as_json=options["as_json"])
        return
    started = Run.start(registry(), directory, config)
    with directory.locked():
        train(
            ctx, registry(), started, tensorboard=options["tensorboard"], as_json=options["as_json"]
        )


def _refuse_beside_resume(ctx: click.Context) -> None:
    for parameter in ctx.command.get_params(ctx):
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in BESIDE_RESUME:
            raise click.UsageError(
                f"{parameter.opts[0]} is fixed when a run starts and cannot go with --resume", ctx
            )


def _data(ctx: click.Context, given: tuple[str, ...], names: list[str]) -> dict[str, str]:
    """Each front-end's data: `NAME=DATA`, or `DATA` where there is but one, or its default."""
    data: dict[str, str] = {}
    for value in given:
        name, equals, rest = value.partition("=")
        if not (equals and name in names):
            name, rest = names[0], value
            if len(names) > 1:
                raise click.UsageError(
                    f"--data {value}: say for which front-end, as in --data {names[0]}={value}", ctx
                )
        if name in data:
            raise click.UsageError(f"--data for {name} is given twice: {data[name]}, {rest}", ctx)
        # A run is resumed from anywhere.
        data[name] = str(Path(rest).resolve()) if rest and Path(rest).exists() else rest
    for name in names:
        default = registry().frontend(name).spec.default_data
        if name not in data and not default:
            raise click.UsageError(f"front-end {name!r} has no data of its own: give --data", ctx)
        data.setdefault(name, default)
    return data


def _new_directory(names: list[str]) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / "-".join([*(name.replace(":", ".") for name in names), stamp])
