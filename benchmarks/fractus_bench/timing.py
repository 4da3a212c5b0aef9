"""Timing variants in turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from fractus_bench.records import Row

Call = Callable[[], int]
"""Does some work and returns how much: tokens, images, ticks."""
SHORTEST = 0.005
"""Seconds that a sample takes at least; what is quicker is called several times."""


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of at least one value."""
    q1, median, q3 = (
        statistics.quantiles(values, n=4, method="inclusive")
        if len(values) > 1
        else [values[0]] * 3
    )
    return {"median": median, "q1": q1, "q3": q3, "n": len(values)}


def middle(value: float | Mapping[str, float]) -> float:
    """The median of a spread, or the number itself."""
    return value["median"] if isinstance(value, Mapping) else value


def sample(call: Call, times: int) -> float:
    """Seconds for each unit of work."""
    begun = time.perf_counter()
    done = sum(call() for _ in range(times))
    return (time.perf_counter() - begun) / done


def in_turns(variants: Mapping[str, Call], repeats: int) -> dict[str, list[float]]:
    """Samples of each variant, warmed up; each round starts with another."""
    names = list(variants)
    times = {name: _times(call) for name, call in variants.items()}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(sample(variants[name], times[name]))
    return samples


def _times(call: Call) -> int:
    """Warm up, and find how many calls make a sample."""
    call()
    begun = time.perf_counter()
    call()
    return max(1, math.ceil(SHORTEST / (time.perf_counter() - begun)))


def compare(
    variants: Mapping[str, Call],
    repeats: int,
    *,
    per: str = "token",
    labels: Mapping[str, Row] | None = None,
) -> list[Row]:
    """A row for each variant: its time, and its speed against the first, both with quartiles.

    Args:
        per: what the variants return the number of.
        labels: what else to say of each variant.
    """
    samples = in_turns(variants, repeats)
    first = next(iter(samples.values()))
    rows = []
    for name, seconds in samples.items():
        taken = spread([1e6 * s for s in seconds])
        rows.append(
            {
                "variant": name,
                **(labels or {}).get(name, {}),
                f"us_per_{per}": taken,
                f"{per}s_per_second": 1e6 / taken["median"],
                # Of samples taken one after the other, so that a slow minute cancels.
                "speedup": spread([a / b for a, b in zip(first, seconds, strict=True)]),
            }
        )
    return rows
