"""`fractus run`: train, and go on with what was begun."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fractus_core.brain.config import RULES, SYNC_EVERY, BrainLink
from fractus_core.cli import torchrun, values
from fractus_core.cli.installed import registry
from fractus_core.cli.numbers import Count, finite
from fractus_core.cli.options import PluginOptionsCommand
from fractus_core.contract import WHOLE, Shard
from fractus_core.engine import PRESETS, EngineConfig
from fractus_core.growth.target import target
from fractus_core.runs.budget import Budget
from fractus_core.runs.cadence import Cadence

DEFAULT_MINUTES = 3.0
BUDGETS = ("tokens", "steps", "minutes")
BESIDE_RESUME = {
    "resume",
    "allow_previous",
    "data",
    "brain",
    *BUDGETS,
    "tensorboard",
    "as_json",
}
"""What may be given with --resume; all else is the run's own, and stands in its run.json."""
AS_GIVEN = ("seed", "shard", "log_every", "eval_every", "eval_tokens", "checkpoint_every")
"""Options that stand in run.json as they are."""


@click.command(cls=PluginOptionsCommand, frontends=["text"], trainer="cpu")
@click.option(
    "--data", multiple=True, metavar="[NAME=]DATA", help="What to learn from, per front-end."
)
@click.option(
    "--mix",
    metavar="NAME=N,...",
    help="Optimizer steps of each front-end in a round, as text=3,vision=1.  [default: 1 each]",
)
@click.option(
    "--shard",
    default=str(WHOLE),
    show_default=True,
    callback=values.parsed(Shard.parse),
    metavar="I/N",
    help="Learn from the I-th of N parts of the data, counted from 0.",
)
@click.option(
    "--brain",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Grow the core weights here together with other runs; made if it is not there.",
)
@click.option(
    "--lane", default="", help="The run's name in the brain.  [default: that of its front-end]"
)
@click.option(
    "--sync-every",
    default=SYNC_EVERY,
    show_default=True,
    type=click.IntRange(min=1),
    help="Steps between exchanges with the brain.",
)
@click.option(
    "--merge",
    type=click.Choice(RULES),
    help="How a new brain puts together what its lanes learnt.  [default: auto]",
)
@values.engine_options
@click.option(
    "--stages",
    "--paliers",
    metavar="0,1,...",
    callback=values.stages,
    help="Train these presets one after the other, each grown from the one before it, each for an "
    "equal part of the budget.",
)
@click.option(
    "--grow-from",
    type=click.Path(path_type=Path),
    metavar="DIRECTORY",
    help="Begin with the weights of this run, grown to --preset and --set.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="Where to train, for a trainer that can choose: its own option `device`.",
)
@click.option(
    "--parallel",
    metavar="NAME",
    help="How the processes that torchrun starts train together: the trainer's own option "
    "`parallel`.",
)
@click.option("--tokens", type=Count(), help="Stop after so many tokens, as 500, 200k or 1.5M.")
@click.option("--steps", type=Count(), help="Stop after so many optimizer steps.")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True, max=1e6),
    callback=finite,
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
    callback=values.parsed(Cadence.parse),
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
    summary.json holds; a line for each of --stages.
    """
    tokens, steps, minutes = options["tokens"], options["steps"], options["minutes"]
    budget = Budget(tokens, steps, minutes and minutes * 60)
    if options["stages"]:
        _refuse(ctx, ("preset", "grow_from", "brain"), "cannot go with --stages")
        options["preset"] = PRESETS[options["stages"][0]]
    engine = values.engine(ctx, options["preset"], options["settings"])
    if options["grow_from"] is not None:
        _refuse(ctx, ("brain",), "cannot go with --grow-from")
    if options["resume"] is not None:
        _refuse_beside_resume(ctx)
    elif options["allow_previous"]:
        raise click.UsageError("--allow-previous goes with --resume", ctx)
    else:
        for name, give in (("device", values.device), ("parallel", values.parallel)):
            if options[name] is not None:
                give(ctx, trainer, options[name])
        [(name, chosen)] = trainer.items()
        do = "give --parallel ddp or fsdp2"
        if "parallel" not in chosen:
            do = "leave out torchrun, or choose a trainer with an option `parallel`, as gpu1b"
        torchrun.require_parallel(ctx, name, chosen, do)
    link = _link(ctx, options)
    if torchrun.processes() > 1:
        _refuse(ctx, ("brain", "stages", "grow_from"), "cannot go with torchrun: use one process")

    with torchrun.joined():
        if options["resume"] is not None:
            _go_on(ctx, options, budget, link)
        else:
            _begin(ctx, frontends, trainer, options, engine, budget, link)


def _go_on(
    ctx: click.Context, options: dict[str, Any], budget: Budget, link: BrainLink | None
) -> None:
    """What was begun."""
    # Torch is slow to import, so only now.
    from fractus_core.cli.growing import climb
    from fractus_core.cli.training import train
    from fractus_core.growth.ladder import Ladder
    from fractus_core.runs.directory import RunDirectory
    from fractus_core.runs.run import Run

    show = _shown(options)
    allow_previous = options["allow_previous"]
    if Ladder.is_at(options["resume"]):
        _refuse(ctx, ("data", *BUDGETS), f"is fixed for all stages of {options['resume']}")
        if torchrun.processes() > 1:
            raise click.UsageError(f"{options['resume']} has stages: use one process", ctx)
        climb(ctx, Ladder.read(options["resume"]), allow_previous=allow_previous, **show)
        return
    directory = RunDirectory(options["resume"])
    config = directory.read_config()
    torchrun.require_parallel(
        ctx, config.trainer.name, config.trainer.options, "go on without torchrun"
    )
    if torchrun.processes() > 1 and config.brain is not None:
        raise click.UsageError(f"{options['resume']} shares a brain: use one process", ctx)
    with directory.locked():
        names = [plugged.name for plugged in config.frontends]
        resumed = Run.resume(
            registry(),
            directory,
            budget=None if budget.unlimited else budget,
            data=values.data(ctx, options["data"], names),
            brain=Path(link.directory) if link else None,
            allow_previous=allow_previous,
        )
        train(ctx, registry(), resumed, **show)


def _begin(
    ctx: click.Context,
    frontends: dict[str, dict[str, Any]],
    trainer: dict[str, dict[str, Any]],
    options: dict[str, Any],
    engine: EngineConfig,
    budget: Budget,
    link: BrainLink | None,
) -> None:
    """A new run, or the stages of one."""
    from fractus_core.cli.growing import climb, tell
    from fractus_core.cli.training import dry_run, make_config, train
    from fractus_core.growth.ladder import Ladder
    from fractus_core.growth.run import start_from
    from fractus_core.runs import ranks
    from fractus_core.runs.derive import Origin
    from fractus_core.runs.directory import RunDirectory
    from fractus_core.runs.run import Run

    show = _shown(options)
    names = list(frontends)
    out = options["out"] or _new_directory([*frontends, *trainer])
    directory = RunDirectory(Path(ranks.first(lambda: str(out))))
    if not options["dry_run"]:
        ranks.first(directory.require_absent)
    origin = Origin.read(options["grow_from"]) if options["grow_from"] is not None else None
    if origin is not None:
        fields = options["preset"] if _is_given(ctx, "preset") else {}
        engine = target(origin.config.engine, fields | options["settings"])
    config = make_config(
        registry(),
        engine,
        frontends,
        trainer,
        data=values.with_defaults(ctx, values.data(ctx, options["data"], names), names),
        brain=link,
        mix=values.shares(ctx, options["mix"], names),
        budget=Budget(seconds=DEFAULT_MINUTES * 60) if budget.unlimited else budget,
        **{name: options[name] for name in AS_GIVEN},
    )
    configs = [config]
    if options["stages"]:
        ladder = Ladder.plan(directory.path, config, options["stages"], options["settings"])
        configs = ladder.configs()
    if options["dry_run"]:
        for stage in configs:
            dry_run(registry(), directory, stage, as_json=options["as_json"])
        return
    if options["stages"]:
        climb(ctx, ladder, **show)
    elif origin is not None:
        start_from(registry(), origin, config, directory, tell=tell)
        with directory.locked():
            train(ctx, registry(), Run.resume(registry(), directory), **show)
    else:
        started = Run.start(registry(), directory, config)
        with directory.locked():
            train(ctx, registry(), started, **show)


def _shown(options: dict[str, Any]) -> dict[str, Any]:
    if options["tensorboard"]:
        from fractus_core.runs.metrics import require_tensorboard

        require_tensorboard()
    return {"tensorboard": options["tensorboard"], "as_json": options["as_json"]}


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refuse(ctx: click.Context, names: Sequence[str], why: str) -> None:
    """Raises `click.UsageError` if one of these options is given."""
    for name in names:
        if _is_given(ctx, name):
            raise click.UsageError(f"--{name.replace('_', '-')} {why}", ctx)


def _refuse_beside_resume(ctx: click.Context) -> None:
    for parameter in ctx.command.get_params(ctx):
        name = parameter.name or ""
        if _is_given(ctx, name) and name not in BESIDE_RESUME:
            raise click.UsageError(
                f"{parameter.opts[0]} is fixed when a run starts and cannot go with --resume", ctx
            )


def _link(ctx: click.Context, options: dict[str, Any]) -> BrainLink | None:
    if options["brain"] is None:
        for name in ("lane", "sync_every", "merge"):
            if _is_given(ctx, name):
                raise click.UsageError(f"--{name.replace('_', '-')} goes with --brain", ctx)
        return None
    try:
        return BrainLink(
            directory=str(options["brain"].resolve()),
            lane=options["lane"],
            sync_every=options["sync_every"],
            rule=options["merge"],
        )
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="--lane") from error


def _new_directory(names: list[str]) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    return Path("runs") / "-".join([*(name.replace(":", ".") for name in names), stamp])
