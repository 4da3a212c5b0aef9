"""`docs/performance.md` from results: what they say in short, then a section for each group."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fractus_bench.grouping import grouped
from fractus_bench.headlines import headlines
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

Made by `fractus bench report` from the files in `benchmarks/results`; do not edit. Each cell is one
measurement, made in a process of its own. A cell that crashed, or took too long or too much memory,
says so.

| heading | meaning |
| --- | --- |
| `12.3 (11.9 - 13.1)` | the median of several samples, and their quartiles |
| cell | what to give to `fractus bench run` to measure it again, after the group's name |
| variant | what the cell compares; its variants are timed in turns |
| speedup | how many times as fast as the first variant of the same cell, in the same run |
| GFLOP/s | of the matrix products that the model needs: three times those of its forward pass |
| MFU % | model FLOPs utilisation: those GFLOP/s, in percent of the machine's peak |
| peak MB | memory of the tensors at the worst moment, beyond what there was before |

A peak is the speed of the best square matrix product, in the precision of the row, right after it.
"""


def write_report(groups: Iterable[Group], results: Mapping[str, Result], page: Path) -> None:
    """Write the page, and its pictures beside it. The same results give the same bytes."""
    machines = number_machines(results.values())
    sections = [
        _INTRODUCTION,
        *_in_short(results, machines),
        "\n".join(["## Machines", "", *_machines(machines, results), ""]),
    ]
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


def _in_short(results: Mapping[str, Result], machines: Machines) -> Iterator[str]:
    """A section, if there is anything to tell."""
    rows = [
        {
            "what": what,
            "measured": measured,
            "cell": f"`{result['cell']}`",
            "machine": str(machines[_machine(result)]),
        }
        for result, (what, measured) in headlines(results)
    ]
    if rows:
        yield "\n".join(["## In short", "", *table(rows), ""])


def _section(group: Group, found: list[Result], machines: Machines) -> list[str]:
    lines = [f"## {_heading(group)}", "", *_wrapped(group.text), ""]
    for command, results in grouped(found, lambda result: result["command"]).items():
        numbers = sorted({machines[_machine(result)] for result in results})
        lines += [
            *_wrapped(f"Made with `{command}` on machine {', '.join(map(str, numbers))}."),
            "",
        ]
    measured = [result for result in found if result["status"] == "ok"]
    # Cells whose rows have the same columns share a table.
    for results in grouped(measured, _columns).values():
        rows = [
            {"cell": result["cell"].partition("/")[2], **row}
            for result in results
            for row in result["rows"]
        ]
        lines += [*table(rows), ""]
    notes = _facts(measured)
    for result in found:
        if result["status"] != "ok":
            notes += _item(f"`{result['cell']}` {result['status']}: {result['detail']}")
    return [*lines, *notes, ""] if notes else lines


def _facts(measured: list[Result]) -> list[str]:
    """A line for each cell that has any, or one for all that have the same."""
    lines = []
    for told, results in grouped(measured, lambda result: facts(result["facts"])).items():
        cells = ", ".join(f"`{result['cell']}`" for result in results)
        if told:
            lines += _item(f"{cells}: {told}")
    return lines


def _heading(group: Group) -> str:
    return group.name.replace("_", " ").capitalize()


def _columns(result: Result) -> tuple[str, ...]:
    return tuple(sorted({key for row in result["rows"] for key in row}))


def _item(line: str) -> list[str]:
    """Of a list."""
    return _wrapped(f"- {line}", indent="  ")


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


# -------------------------------------------------------------------------------------- machines


def number_machines(results: Iterable[Result]) -> Machines:
    """Every machine, version and day that results are from, counted from 1."""
    found = sorted({_machine(result) for result in results})
    return {machine: number for number, machine in enumerate(found, 1)}


def _machine(result: Result) -> str:
    described = {**result["machine"], "threads": result["threads"], "day": result["date"][:10]}
    return json.dumps(described)


def _machines(machines: Machines, results: Mapping[str, Result]) -> list[str]:
    """A list of them, with the peaks that were measured beside the results."""
    lines = []
    for machine, number in machines.items():
        peaks = [
            result["gemm_gflops"]
            for result in results.values()
            if _machine(result) == machine and result.get("gemm_gflops")
        ]
        told = [facts({k: v for k, v in json.loads(machine).items() if v is not None})]
        told += [
            f"{precision} peak {_range([peak[precision] for peak in peaks])} GFLOP/s"
            for precision in ("fp32", "bf16")
            if peaks
        ]
        lines += _wrapped(f"{number}. {', '.join(told)}", indent="   ")
    return lines


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"
