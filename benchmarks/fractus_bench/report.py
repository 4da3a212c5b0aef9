"""`docs/performance.md` from results: a section for each group, with its tables and pictures."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fractus_bench.markdown import facts, table
from fractus_bench.pictures import draw
from fractus_bench.records import Group
from fractus_bench.results import Result
from fractus_core.api import write_atomically

WIDTH = 100
PICTURES = "pictures"
"""The folder of pictures, beside the page."""
Machines = Mapping[str, int]
"""What describes a machine, as JSON, to its number."""

_INTRODUCTION = """\
# Performance

Made by `fractus bench report` from the files in `benchmarks/results`; do not edit. Each cell is
measured in a process of its own. Times are medians with quartiles in brackets. `speedup` is how
many times as fast as the first variant of the same cell; the variants of a cell are timed in turns,
and nothing is divided by what was measured in another run. A cell that crashed, or took too long or
too much memory, says so.
"""


def write_report(groups: Iterable[Group], results: Mapping[str, Result], page: Path) -> None:
    """Write the page, and its pictures beside it. The same results give the same bytes."""
    machines = number_machines(results.values())
    sections = [_INTRODUCTION, "\n".join(["## Machines", "", *_machines(machines, results), ""])]
    for group in groups:
        found = [results[cell.name] for cell in group.cells if cell.name in results]
        if not found:
            continue
        lines = _section(group, found, machines)
        picture = draw(group, found)
        if picture is not None:
            name = f"{PICTURES}/performance-{group.name.replace('_', '-')}.png"
            write_atomically(page.parent / name, picture)
            lines += [f"![{group.name}]({name})", ""]
        sections.append("\n".join(lines))
    write_atomically(page, "\n".join(sections).encode())


def _section(group: Group, found: list[Result], machines: Machines) -> list[str]:
    title = group.name.replace("_", " ").capitalize()
    lines = [f"## {title}", "", *textwrap.wrap(group.text, WIDTH), ""]
    for command, results in _grouped(found, lambda result: result["command"]):
        numbers = sorted({machines[_machine(result)] for result in results})
        lines += [f"Made with `{command}` on machine {', '.join(map(str, numbers))}.", ""]
    measured = [result for result in found if result["status"] == "ok"]
    # Cells whose rows have the same columns share a table.
    for _, results in _grouped(
        measured, lambda result: sorted({k for r in result["rows"] for k in r})
    ):
        rows = [
            {"cell": result["cell"].partition("/")[2], **row}
            for result in results
            for row in result["rows"]
        ]
        lines += [*table(rows), ""]
    for result in found:
        if result["status"] != "ok":
            lines.append(f"- `{result['cell']}` {result['status']}: {result['detail']}")
        elif result["facts"]:
            lines.append(f"- `{result['cell']}`: {facts(result['facts'])}")
    return [*lines, ""]


# -------------------------------------------------------------------------------------- machines


def number_machines(results: Iterable[Result]) -> Machines:
    """Every machine, version and day that results are from, counted from 1."""
    found = sorted({_machine(result) for result in results})
    return {machine: number for number, machine in enumerate(found, 1)}


def _machine(result: Result) -> str:
    facts = {**result["machine"], "threads": result["threads"], "day": result["date"][:10]}
    return json.dumps(facts)


def _machines(machines: Machines, results: Mapping[str, Result]) -> list[str]:
    """A table of them, with the peaks that were measured beside the results."""
    rows = []
    for machine, number in machines.items():
        peaks = [
            result["gemm_gflops"]
            for result in results.values()
            if _machine(result) == machine and result.get("gemm_gflops")
        ]
        best = {
            f"{precision} peak, GFLOP/s": _range([peak[precision] for peak in peaks])
            for precision in ("fp32", "bf16")
        }
        rows.append({"machine": number, **json.loads(machine), **best})
    return table(rows)


def _range(values: list[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}" if values else ""


def _grouped(
    results: Iterable[Result], key: Callable[[Result], Any]
) -> list[tuple[str, list[Result]]]:
    """Results with the same key together, in the order in which the keys come."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(str(key(result)), []).append(result)
    return list(found.items())
