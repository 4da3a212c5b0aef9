"""Expert phases against fractions enumerated one by one."""

from __future__ import annotations

import itertools
import math

import pytest

from fractus_core.engine.farey import expert_phases, farey_sequence


@pytest.mark.parametrize("order", range(1, 30))
def test_sequence(order: int) -> None:
    naive = [
        (p, q) for q in range(1, order + 1) for p in range(q + 1) if math.gcd(p, q) == 1
    ]  # 0/1 is the only zero, since gcd(0, q) = q
    assert farey_sequence(order) == sorted(naive, key=lambda term: term[0] / term[1])


@pytest.mark.parametrize("n_experts", [1, 2, 3, 4, 8, 16, 32, 61, 64, 128])
def test_phases_are_distinct_sorted_and_even(n_experts: int) -> None:
    phases = expert_phases(n_experts)
    assert len(phases) == n_experts
    assert phases == sorted(set(phases))
    assert phases[0] == 0.0
    assert phases[-1] < 2 * math.pi  # where 0 already is
    fractions = [p / q for p, q in farey_sequence(2 * n_experts)]
    places = [
        min(range(len(fractions)), key=lambda i: abs(phase / (2 * math.pi) - fractions[i]))
        for phase in phases
    ]
    assert [2 * math.pi * fractions[i] for i in places] == pytest.approx(phases)
    steps = {b - a for a, b in itertools.pairwise([*places, len(fractions)])}
    assert max(steps) - min(steps) <= 1
    # Farey sequences are evenly distributed: their gaps are below 1 / order.
    assert all(
        abs(phase / (2 * math.pi) - i / n_experts) < 1 / n_experts for i, phase in enumerate(phases)
    )
