"""Rows as tables, in Markdown that can be read in a terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fractus_bench.records import Row

_HEADINGS = {
    "C": "chunk length",
    "E": "experts",
    "V": "vocabulary",
    "chunk": "chunk length",
    "chunk_len": "chunk length",
    "d_head": "head width",
    "loss": "loss, nats",
    "loss_cold": "loss cold, nats",
    "loss_windows": "loss windows, nats",
    "mfu": "MFU %",
}
"""Of keys that are not read out word by word."""
_FIELDS = {"d_model", "n_layers", "n_experts"}
"""Of `EngineConfig`: as `--set` takes them."""
_WORDS = {
    "us": "µs",
    "mb": "MB",
    "gflops": "GFLOP/s",
    "mflop": "MFLOP",
    "flop": "FLOP",
    "ms": "ms",
    "gb": "GB",
    "cpu": "CPU",
}


def title(key: str) -> str:
    """A row's key as a heading."""
    if key in _HEADINGS:
        return _HEADINGS[key]
    if key in _FIELDS:
        return key
    return " ".join(_WORDS.get(word, word) for word in key.split("_"))


def text(value: Any) -> str:
    """A number, a spread as `median (q1 - q3)`, anything else as it is."""
    match value:
        case None:
            return ""
        case {"median": median, "q1": q1, "q3": q3}:
            middle, low, high = map(_number, (median, q1, q3))
            return middle if low == high else f"{middle} ({low} - {high})"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return _number(value)
        case _:
            return str(value)


def _number(value: float) -> str:
    """With about as many digits as mean something."""
    if value == round(value):
        return f"{value:,.0f}"
    if abs(value) < 0.01:
        return f"{value:.1e}"
    places = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:,.{places}f}"


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
