"""Rows as tables, in Markdown that can be read in a terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fractus_bench.records import Row

_WORDS = {
    "us": "µs",
    "mfu": "MFU %",
    "mb": "MB",
    "gflops": "GFLOP/s",
    "ms": "ms",
    "gb": "GB",
    "cpu": "CPU",
}
_CODE = {"C", "E", "V", "d_head", "d_model", "n_layers", "n_experts"}


def title(key: str) -> str:
    """A row's key as a heading."""
    if key in _CODE:
        return key
    return " ".join(_WORDS.get(word, word) for word in key.split("_"))


def text(value: Any) -> str:
    """A number with four digits, a spread as `median (q1 - q3)`, anything else as it is."""
    match value:
        case None:
            return ""
        case {"median": median, "q1": q1, "q3": q3}:
            return f"{_number(median)} ({_number(q1)} - {_number(q3)})"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return _number(value)
        case _:
            return str(value)


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 100 else f"{value:.1f}"


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table. A column for each key that has values."""
    keys = list(dict.fromkeys(k for row in rows for k, value in row.items() if value is not None))
    cells = [[title(key) for key in keys], *([text(row.get(key)) for key in keys] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(_is_number(row.get(key)) for row in rows) for key in keys]
    lines = [
        "| " + " | ".join(_pad(*each) for each in zip(line, widths, right, strict=True)) + " |"
        for line in cells
    ]
    rule = ("-" * (w + 1) + ":" if r else "-" * (w + 2) for w, r in zip(widths, right, strict=True))
    lines.insert(1, "|" + "|".join(rule) + "|")
    return lines


def facts(found: Mapping[str, Any]) -> str:
    """`vocabulary 8,192, exponent 0.97`."""
    return ", ".join(f"{title(key)} {text(value)}" for key, value in found.items())


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, dict))


def _pad(cell: str, width: int, right: bool) -> str:
    return cell.rjust(width) if right else cell.ljust(width)
