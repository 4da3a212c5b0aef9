"""What most people want to know, a line each, computed from the results of a few cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fractus_bench.grouping import grouped
from fractus_bench.markdown import text
from fractus_bench.records import Row
from fractus_bench.results import Result
from fractus_bench.timing import middle

Headline = tuple[str, str]
"""What was measured, and what came out."""


def headlines(results: Mapping[str, Result]) -> Iterator[tuple[Result, Headline]]:
    """Those of the results that are there, each with the result that it is from."""
    for cell, tell in _TELL.items():
        if cell in results and results[cell]["status"] == "ok":
            for headline in tell(results[cell]):
                yield results[cell], headline


def _against_reference(result: Result) -> Iterator[Headline]:
    reference, *others = result["rows"]
    vocabulary = text(result["facts"]["vocabulary"])
    for row in others:
        yield (
            f"Training step, vocabulary {vocabulary}, chunks of {row['chunk']}: {row['variant']}",
            f"{_times(row['speedup'])} as fast as the {reference['variant']} in chunks of "
            f"{reference['chunk']}; MFU {row['mfu']:.0f} %, not {reference['mfu']:.0f} %",
        )


def _experts(result: Result) -> Iterator[Headline]:
    few, many = result["rows"][0], result["rows"][-1]
    yield (
        f"Training step: {many['variant']}",
        f"{_longer(many, few, 'us_per_token')} as long as with {few['variant']}",
    )


def _flatness(result: Result) -> Iterator[Headline]:
    for kind, rows in grouped(result["rows"], _kind).items():
        early, late = rows[0], rows[-1]
        early_place, late_place = (row["variant"].partition(", ")[2] for row in (early, late))
        yield (
            f"Decoding with one stream, {kind}: {late_place}",
            f"{_longer(late, early, 'us_per_tick')} as long as {early_place}; "
            f"{text(late['ticks_per_second'])} tokens a second",
        )


def _streams(result: Result) -> Iterator[Headline]:
    for kind, rows in grouped(result["rows"], _kind).items():
        one, many = rows[0], rows[-1]
        yield (
            f"Decoding side by side, {kind}: {many['streams']} streams",
            f"{_longer(one, many, 'us_per_token')} as many tokens as one; "
            f"{text(many['tokens_per_second'])} a second",
        )


def _start(result: Result) -> Iterator[Headline]:
    small, large = result["rows"][0], result["rows"][-1]
    more = sum(large[key] - small[key] for key in ("heap_mb", "mapped_mb"))
    yield (
        f"Opening and reading a corpus of {large['variant']}, once it is in the cache",
        f"{text(middle(large['start_ms']))} ms to the first batch, {text(more)} MB more memory "
        f"than with {small['variant']}",
    )


def _characters(result: Result) -> Iterator[Headline]:
    yield _race(result, "Tiny Shakespeare", "loss", " nats", min)


def _images(result: Result) -> Iterator[Headline]:
    yield _race(result, "CIFAR-10", "accuracy", "", max)


def _growth(result: Result) -> Iterator[Headline]:
    last = {row["variant"]: row for row in result["rows"]}
    _, *large = last.values()
    yield (
        f"Tiny Shakespeare: loss after {large[0]['step']} further steps",
        ", ".join(f"{row['variant']} {text(middle(row['loss']))} nats" for row in large),
    )


def _race(result: Result, data: str, figure: str, unit: str, best: Callable[..., Row]) -> Headline:
    """The best of each kind of entrant."""
    kinds = grouped(result["rows"], _kind)
    winners = {
        kind: best(rows, key=lambda row: middle(row[figure])) for kind, rows in kinds.items()
    }
    told = [f"{kind} {text(middle(row[figure]))}{unit}" for kind, row in winners.items()]
    return f"{data}: best {figure} after {text(result['facts']['seconds'])} s", ", ".join(told)


def _kind(row: Row) -> str:
    """`GPT` of the variant `GPT, 4 layers`."""
    kind: str = row["variant"].partition(", ")[0]
    return kind


def _longer(row: Row, than: Row, key: str) -> str:
    return _times(middle(row[key]) / middle(than[key]))


def _times(value: float | Mapping[str, float]) -> str:
    return f"{middle(value):.3g} times"


_TELL: Mapping[str, Callable[[Any], Iterator[Headline]]] = {
    "step/V50257": _against_reference,
    "step/V8192": _against_reference,
    "experts/step": _experts,
    "decode/flat": _flatness,
    "decode/streams": _streams,
    "data/start": _start,
    "race/chars-60s": _characters,
    "race/chars-180s": _characters,
    "race/cifar": _images,
    "growth/chars": _growth,
}
"""Cells, in the order of their headlines, and what makes those of their results."""
