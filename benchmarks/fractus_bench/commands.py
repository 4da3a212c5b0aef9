"""`fractus bench`: list cells, run them, report, and count what a model costs."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from fractus_bench import groups, results
from fractus_bench.records import Cell
from fractus_core.api import EngineConfig, FractusError, finite
from fractus_core.cli import values


@click.group()
def bench() -> None:
    """Measure speed, one cell at a time, and report.

    A cell is one measurement, named GROUP/WHAT.
    """


@bench.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(as_json: bool) -> None:
    """Show all cells.

    --json: [{"name", "group", "summary", "limit_seconds", "repeats"}, ...].
    """
    if as_json:
        found = [
            {
                "name": cell.name,
                "group": group.name,
                "summary": cell.summary,
                "limit_seconds": cell.limit,
                "repeats": cell.repeats,
            }
            for group in groups.GROUPS
            for cell in group.cells
        ]
        click.echo(json.dumps(found))
        return
    width = max(len(cell.name) for cell in _cells())
    for group in groups.GROUPS:
        click.echo(group.name)
        for cell in group.cells:
            click.echo(f"  {cell.name:<{width}}  {cell.summary}")


@bench.command()
@click.argument("names", metavar="[CELL]...", nargs=-1)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the results.  [default: benchmarks/results if it is there, or bench-results]",
)
@click.option(
    "--threads",
    default=os.cpu_count() or 1,
    show_default="cores",
    type=click.IntRange(min=1, max=1024),
    help="Processor threads.",
)
@click.option(
    "--repeats", type=click.IntRange(min=1), help="Samples, instead of each cell's own number."
)
@click.option("--json", "as_json", is_flag=True, help="Print the results as a JSON list.")
@click.pass_context
def run(
    ctx: click.Context,
    names: tuple[str, ...],
    out: Path | None,
    threads: int,
    repeats: int | None,
    as_json: bool,
) -> None:
    """Measure each CELL, or pattern such as 'attention/*'; all without any.

    Each runs in a process of its own, and what was finished is kept, whatever happens to the rest.
    Exits with 1 if a cell named without a pattern failed, with 143 on SIGTERM.
    """
    from fractus_bench.markdown import facts, table
    from fractus_bench.progress import Progress
    from fractus_bench.runner import Runner, exit_on_sigterm

    chosen = _choose(ctx, names)
    directory = out or results.default_directory()
    results.require_savable(directory, (cell.name for cell in chosen))
    runner = Runner(_command(names, threads, repeats), threads, repeats)
    found = []
    with exit_on_sigterm(), Progress(len(chosen)) as progress:
        for cell in chosen:
            progress.begin(cell.name)
            result = runner.run(cell)
            results.save(directory, result)
            found.append(result)
            progress.end(result)
            if not as_json and result["status"] == "ok":
                click.echo("\n".join([*table(result["rows"]), facts(result["facts"])]) + "\n")
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo(
            f"{len(found)} results in {directory}; fractus bench report makes a page of them"
        )
    failed = {r["cell"] for r in found if r["status"] not in ("ok", "skipped")}
    if failed & set(names):
        ctx.exit(1)


@bench.command()
@click.argument("directory", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "-o",
    "--output",
    default=Path("docs/performance.md"),
    show_default=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page; pictures go into a folder beside it.",
)
def report(directory: Path | None, output: Path) -> None:
    """Write a page with tables and pictures from the results in DIRECTORY.

    The same results give the same page.
    """
    found = results.load(directory or results.default_directory())
    try:
        from fractus_bench.report import write_report
    except ImportError as error:
        raise FractusError(f"the report needs {error.name}: pip install 'fractus[bench]'") from None
    write_report(groups.GROUPS, found, output)
    click.echo(f"{output}: {len(found)} results")


@bench.command()
@values.engine_options
@click.option("--vocabulary", default=50257, show_default=True, type=click.IntRange(min=0))
@click.option("--chunk-len", default=32, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--peak",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    metavar="GFLOPS",
    help="Also tell the time per token at so many GFLOP/s.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def model(
    ctx: click.Context,
    preset: dict[str, Any],
    settings: dict[str, Any],
    vocabulary: int,
    chunk_len: int,
    peak: float | None,
    as_json: bool,
) -> None:
    """Count parameters, operations and bytes per token, by arithmetic alone.

    Training takes three times the operations of the forward pass.

    --json: {"parameters", "active_parameters", "forward_flops" by part, "training_flops",
    "bytes_per_token" by part, with --peak also "microseconds_forward", "microseconds_training"}.
    """
    from fractus_bench.markdown import table

    config = values.engine(ctx, preset, settings)
    cost = count(config, vocabulary, chunk_len, peak)
    if as_json:
        click.echo(json.dumps(cost))
        return
    total, active = cost["parameters"], cost["active_parameters"]
    rows = [
        {"part": part, "parameters": total[part], "active for a token": active[part]}
        for part in total
    ]
    click.echo("\n".join(table(rows)) + "\n")
    forward = cost["forward_flops"]
    rows = [
        {"part": part, "MFLOP a token, forward": n / 1e6, "percent": 100 * n / forward["total"]}
        for part, n in forward.items()
    ]
    click.echo("\n".join(table(rows)) + "\n")
    click.echo(f"training: {cost['training_flops'] / 1e6:,.1f} MFLOP a token")
    moved = ", ".join(f"{part} {n / 1e6:,.1f} MB" for part, n in cost["bytes_per_token"].items())
    click.echo(f"moved for a token of one stream: {moved}")
    if peak is not None:
        click.echo(
            f"at {peak:,g} GFLOP/s: {cost['microseconds_forward']:,.1f} µs a token forward, "
            f"{cost['microseconds_training']:,.1f} µs in training"
        )


def count(
    config: EngineConfig, vocabulary: int, chunk_len: int, peak: float | None
) -> dict[str, Any]:
    """What `fractus bench model --json` prints."""
    from fractus_bench import flops

    forward = _with_total(flops.forward_flops(config, vocabulary, chunk_len))
    training = flops.TRAINING * forward["total"]
    cost: dict[str, Any] = {
        "parameters": _with_total(flops.parameters(config, vocabulary)),
        "active_parameters": _with_total(flops.active_parameters(config, vocabulary)),
        "forward_flops": forward,
        "training_flops": training,
        "bytes_per_token": _with_total(flops.bytes_per_token(config, vocabulary)),
    }
    if peak is not None:
        cost["microseconds_forward"] = forward["total"] / peak / 1e3
        cost["microseconds_training"] = training / peak / 1e3
    return cost


def _with_total(parts: Mapping[str, float]) -> dict[str, float]:
    return {**parts, "total": sum(parts.values())}


def _cells() -> list[Cell]:
    return [cell for group in groups.GROUPS for cell in group.cells]


def _choose(ctx: click.Context, names: tuple[str, ...]) -> list[Cell]:
    """The cells that any of the names or patterns means, in the order of the table."""
    cells = _cells()
    for name in names:
        if not any(fnmatchcase(cell.name, name) for cell in cells):
            close = get_close_matches(name, [cell.name for cell in cells], n=1)
            hint = f"did you mean {close[0]}?" if close else "fractus bench list shows all"
            raise click.BadParameter(f"there is no cell {name!r}; {hint}", ctx, param_hint="CELL")
    return [c for c in cells if not names or any(fnmatchcase(c.name, n) for n in names)]


def _command(names: tuple[str, ...], threads: int, repeats: int | None) -> str:
    """What to type to do the same again, wherever the results go."""
    words = ["fractus", "bench", "run", *names, "--threads", str(threads)]
    return shlex.join(words if repeats is None else [*words, "--repeats", str(repeats)])
