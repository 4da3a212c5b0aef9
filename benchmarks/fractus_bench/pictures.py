"""A group's charts, as one PNG."""

from __future__ import annotations

import io
import math
import textwrap
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fractus_bench.fit import power_law
from fractus_bench.markdown import text, title
from fractus_bench.records import Chart, Group, Row
from fractus_bench.results import Result
from fractus_bench.timing import middle

ACROSS, WIDTH, HEIGHT = 3, 4.6, 3.4
"""Charts beside each other, and the size of one in inches."""
NAME = 20
"""Letters of a line in the name of a bar."""
SPAN = 4.0
"""How many times its lowest value the highest of a logarithmic axis is at least: less would make a
slope of what is flat."""


def draw(group: Group, results: list[Result]) -> bytes | None:
    """The PNG, or None where there is nothing to draw. The same results give the same bytes."""
    charts = [(chart, rows) for chart in group.charts if (rows := _rows(chart, results))]
    if not charts:
        return None
    across = min(ACROSS, len(charts))
    down = math.ceil(len(charts) / across)
    figure = Figure(figsize=(across * WIDTH, down * HEIGHT), layout="constrained")
    for place, (chart, rows) in enumerate(charts, 1):
        axes = figure.add_subplot(down, across, place)
        {"lines": _lines, "bars": _bars, "growth": _growth}[chart.kind](axes, chart, rows)
        axes.set_title(chart.title, fontsize="medium")
    opened = io.BytesIO()
    figure.savefig(opened, format="png", dpi=110, metadata={"Software": None})
    return opened.getvalue()


def _rows(chart: Chart, results: list[Result]) -> list[Row]:
    return [
        row
        for result in results
        if result["status"] == "ok" and fnmatchcase(result["cell"], chart.cells)
        for row in result["rows"]
        if chart.x in row and row.get(chart.y) is not None
    ]


def _lines(axes: Axes, chart: Chart, rows: list[Row]) -> None:
    """On logarithmic axes, a line for each variant, with quartiles."""
    series: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        series[row.get("variant", "")].append(row)
    if len({row[chart.x] for row in rows}) == len(rows):  # variants are the points of one line
        series = {"": rows}
    for name, points in series.items():
        points = sorted(points, key=lambda row: row[chart.x])
        x = [row[chart.x] for row in points]
        y = [middle(row[chart.y]) for row in points]
        [line] = axes.plot(x, y, marker="o", markersize=4, label=name)
        low, high = zip(*(_quartiles(row[chart.y]) for row in points), strict=True)
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    ticks = sorted({row[chart.x] for row in rows})
    axes.set_xticks(ticks, [_short(tick) for tick in ticks], fontsize="small")
    axes.set_yscale("log")
    _make_readable(axes)
    axes.set_xlabel(title(chart.x))
    axes.set_ylabel(title(chart.y))
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(fontsize="small")


def _growth(axes: Axes, chart: Chart, rows: list[Row]) -> None:
    rows = sorted(rows, key=lambda row: row[chart.x])
    _lines(axes, chart, rows)
    axes.lines[0].set_label("measured")
    x = [row[chart.x] for row in rows]
    y = [middle(row[chart.y]) for row in rows]
    factor, exponent = power_law(x, y)
    fitted = [factor * value**exponent for value in x]
    axes.plot(x, fitted, "--", color="black", label=f"power law, exponent {exponent:.2f}")
    flops = [row["mflop_per_token"] for row in rows]
    at = len(rows) // 2  # where both are the same
    predicted = [y[at] * value / flops[at] for value in flops]
    axes.plot(x, predicted, ":", color="tab:red", label="FLOP model")
    _make_readable(axes)
    axes.legend(fontsize="small")


def _make_readable(axes: Axes) -> None:
    """Plain numbers along a logarithmic y axis, and a range that does not magnify noise."""
    low, high = axes.get_ylim()
    if high < SPAN * low:
        wider = math.sqrt(SPAN * low / high)
        axes.set_ylim(low / wider, high * wider)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="y", labelsize="small")


def _short(tick: Any) -> str:
    return f"{tick / 1e6:g}M" if tick >= 1e6 else text(tick)


def _bars(axes: Axes, chart: Chart, rows: list[Row]) -> None:
    names = [textwrap.fill(str(row[chart.x]), NAME) for row in rows]
    middles = [middle(row[chart.y]) for row in rows]
    quartiles = [_quartiles(row[chart.y]) for row in rows]
    low = [m - q1 for m, (q1, _) in zip(middles, quartiles, strict=True)]
    high = [q3 - m for m, (_, q3) in zip(middles, quartiles, strict=True)]
    bars = axes.barh(names, middles, xerr=[low, high], color="tab:blue", ecolor="0.3")
    axes.bar_label(bars, [text(m) for m in middles], padding=3, fontsize="small")
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.tick_params(labelsize="small")
    axes.set_xlabel(title(chart.y))


def _quartiles(value: Any) -> tuple[float, float]:
    return (value["q1"], value["q3"]) if isinstance(value, dict) else (value, value)
