"""Expert phases from the Farey sequence. Imports no torch."""

from __future__ import annotations

import math


def farey_sequence(order: int) -> list[tuple[int, int]]:
    """The fractions in [0, 1] with denominators up to `order`, ascending, as (p, q).

    Source: the standard next-term recurrence (Graham, Knuth, Patashnik, Concrete Mathematics, 4.5).
    """
    a, b, c, d = 0, 1, 1, order
    terms = [(a, b)]
    while c <= order:
        k = (order + b) // d
        a, b, c, d = c, d, k * c - a, k * d - b
        terms.append((a, b))
    return terms


def expert_phases(n_experts: int) -> list[float]:
    """`n_experts` angles in [0, 2 pi), in radians, taken evenly from the sequence of order 2E."""
    terms = farey_sequence(2 * n_experts)
    picks = (terms[i * len(terms) // n_experts] for i in range(n_experts))
    return [2 * math.pi * p / q for p, q in picks]
