"""What `fractus run` does once its options are understood. Imports torch."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from itertools import islice
from typing import Any

import click
import psutil
import torch

from fractus_core.engine import ContinuousThoughtEngine, EngineConfig
from fractus_core.errors import FractusError
from fractus_core.plugins.registry import Registry, load_target
from fractus_core.runs import ranks
from fractus_core.runs.assembly import infer_frontend, plug_trainer
from fractus_core.runs.budget import Budget, Spent, duration
from fractus_core.runs.config import RunConfig
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.reporter import Reporter
from fractus_core.runs.run import Run

INTERRUPTED = 130
BYTES_PER_PARAMETER = 16
"""Weights, gradients and an optimizer's two moments, in fp32."""
TIMED_STEPS, TIMED_SECONDS = 5, 10.0
"""A dry run times so many steps, or as many whole rounds as take so long."""


def make_config(
    registry: Registry,
    engine: EngineConfig,
    frontends: dict[str, dict[str, Any]],
    trainer: dict[str, dict[str, Any]],
    *,
    data: dict[str, str],
    mix: dict[str, int],
    **rest: Any,
) -> RunConfig:
    [(trainer_name, trainer_options)] = trainer.items()
    return RunConfig(
        engine=engine,
        # First: if this machine cannot do it, no data need be read.
        trainer=plug_trainer(registry, trainer_name, trainer_options, frontends),
        frontends=tuple(
            infer_frontend(registry, name, options, data[name], share=mix.get(name, 1))
            for name, options in frontends.items()
        ),
        **rest,
    )


def train(
    ctx: click.Context,
    registry: Registry,
    run: Run,
    *,
    tensorboard: bool,
    as_json: bool,
    more_to_come: bool = False,
) -> None:
    """Execute `run` and tell how it ended; exits with 130 if it was interrupted.

    What to do with it is left out where there is `more_to_come`.
    """
    path = run.directory.path
    with Reporter() as reporter:
        for line in introduction(run):
            reporter.note(line)
        summary = run.execute(reporter, tensorboard=tensorboard)
    if as_json:
        result = {"directory": str(path), "finished": summary is not None, **asdict(run.spent)}
        click.echo(json.dumps(result | (summary or {})))
    elif summary is None:
        click.echo(f"interrupted at step {run.spent.steps:,}; {run.resume_hint()}", err=True)
    else:
        uses = [u for p in run.config.frontends for u in registry.frontend(p.name).spec.uses]
        lines = conclusion(summary) + ([] if more_to_come else suggestions(run, uses))
        click.echo("\n".join(lines))
    if summary is None:
        ctx.exit(INTERRUPTED)


def introduction(run: Run) -> list[str]:
    """What is about to be trained."""
    parameters = run.model.parameter_count()
    lines = [f"run {run.directory.path}: {parameters:,} parameters, {run.config.budget.describe()}"]
    if run.spent.steps:
        lines[0] += f", resumed at step {run.spent.steps:,}, {run.spent.tokens:,} tokens"
    lines += [
        f"{plugged.name}: {plugged.data}, {ranks.world() * lane.source.rows:,} rows"
        for plugged, lane in zip(run.config.frontends, run.lanes, strict=True)
    ]
    if run.brain is not None:
        link = run.brain.link
        lines.append(
            f"brain {link.directory}: lane {link.lane} with front-end "
            f"{', '.join(run.brain.keys.values())}, exchanges every {link.sync_every:,} steps"
        )
    options = run.trainer.options
    shown = (
        *("device", "optimizer", "lr", "batch_size", "chunk_len", "precision", "threads"),
        *("compile_seconds", "compile_graphs", "compile_breaks"),
    )
    facts = [f"{name} {options[name]}" for name in shown if name in options]
    lines.append(f"trainer {run.config.trainer.name}: {', '.join(facts)}")
    if ranks.world() > 1:
        lines.append(f"{ranks.world()} processes, parallel {options['parallel']}")
    return lines + run.forecast


def conclusion(summary: dict[str, Any]) -> list[str]:
    """How a finished run did."""
    lines = [
        f"finished: {summary['steps']:,} steps, {summary['tokens']:,} tokens in "
        f"{duration(summary['seconds'])}, {summary['tokens_per_second']:,.0f} tokens/s"
    ]
    for name, figures in summary["frontends"].items():
        values = [
            f"{key.replace('_', ' ')} {value:.4f}"
            for key, value in figures.items()
            if isinstance(value, float)
        ]
        lines.append(f"{name} on held-out data: " + ", ".join(values))
    return lines


def suggestions(run: Run, uses: list[str]) -> list[str]:
    """What to do with a finished run."""
    path = shlex.quote(str(run.directory.path))
    brain = []
    if run.brain is not None:
        brain = [f"  fractus brain status {shlex.quote(run.brain.link.directory)}"]
    return [
        "go on with",
        *("  " + use.replace("{run}", path) for use in uses),
        f"  fractus eval {path}",
        *brain,
        f"  fractus run --resume {path} {_twice(run.config.budget, run.spent)}",
    ]


def _twice(budget: Budget, spent: Spent) -> str:
    """The option that gives as much again, in the unit in which it was given.

    A run that was cut short has spent more than its budget.
    """
    if budget.steps:
        return f"--steps {2 * max(budget.steps, spent.steps)}"
    if budget.tokens:
        return f"--tokens {2 * max(budget.tokens, spent.tokens)}"
    assert budget.seconds is not None
    minutes = max(budget.seconds, spent.seconds - spent.seconds % 60) / 60
    return f"--minutes {2 * minutes:g}"


def dry_run(
    registry: Registry, directory: RunDirectory, config: RunConfig, *, as_json: bool
) -> None:
    """Assemble the run in memory, time a few steps on its data, and forget it.

    Raises:
        FractusError: if it would not fit into the memory that is free.
    """
    with torch.device("meta"):
        engine = ContinuousThoughtEngine(config.engine)
    least = sum(p.numel() for p in engine.parameters()) * BYTES_PER_PARAMETER
    free = psutil.virtual_memory().available
    knows_better = hasattr(load_target(registry.trainer(config.trainer.name)), "preflight")
    if least > free and not knows_better:
        raise FractusError(
            f"the engine needs at least {least / 1e9:.1f} GB for weights, gradients and optimizer; "
            f"{free / 1e9:.1f} GB are free: choose a smaller --preset"
        )
    run = Run.rehearse(registry, directory, config)
    if not as_json:
        click.echo("\n".join([*introduction(run), "timing a few steps"]))
    steps = run.trainer.train(lambda: 0.0)
    # Whole rounds, for front-ends' steps differ; the first of them allocates.
    each = sum(plugged.share for plugged in config.frontends)
    for _ in islice(steps, each):
        pass
    begun, timed, tokens, seconds = time.perf_counter(), 0, 0, 0.0
    while timed < TIMED_STEPS and seconds < TIMED_SECONDS:
        tokens += sum(step.tokens for step in islice(steps, each))
        timed += each
        seconds = time.perf_counter() - begun
    seconds /= timed
    tokens_per_step = tokens / timed
    budget = config.budget
    limits = [
        budget.seconds,
        budget.steps and budget.steps * seconds,
        budget.tokens and budget.tokens / tokens_per_step * seconds,
    ]
    plan: dict[str, Any] = {
        "directory": str(directory.path),
        "parameters": run.model.parameter_count(),
        "tokens_per_step": round(tokens_per_step),
        "tokens_per_second": round(tokens_per_step / seconds, 1),
        "training_seconds": round(min(limit for limit in limits if limit is not None), 1),
        "memory_mb": round(psutil.Process().memory_info().rss / 1e6),
        "config": run.config.to_json(),
    }
    if as_json:
        click.echo(json.dumps(plan))
        return
    click.echo(
        f"{plan['tokens_per_step']:,} tokens a step, {plan['tokens_per_second']:,.0f} tokens/s, "
        f"{duration(plan['training_seconds'])} of training, a process of {plan['memory_mb']:,} MB; "
        "nothing was written"
    )
