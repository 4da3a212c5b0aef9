"""The learning rate over a run, against values worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from fractus_trainers.schedule import warmup_stable_decay


@pytest.mark.parametrize(
    ("step", "progress", "warmup_steps", "decay_from", "final", "factor"),
    [
        # Up: a fifth, two, ..., and from the fourth step on the whole.
        (0, 0.0, 4, 0.5, 0.1, 0.2),
        (1, 0.0, 4, 0.5, 0.1, 0.4),
        (3, 0.0, 4, 0.5, 0.1, 0.8),
        (4, 0.0, 4, 0.5, 0.1, 1.0),
        (5, 0.0, 4, 0.5, 0.1, 1.0),
        (0, 0.0, 0, 0.5, 0.1, 1.0),
        # Flat.
        (100, 0.49, 4, 0.5, 0.1, 1.0),
        (100, 0.5, 4, 0.5, 0.1, 1.0),
        # Down: half way from 1 to 0.1 when half of the rest is spent.
        (100, 0.75, 4, 0.5, 0.1, 0.55),
        (100, 0.875, 4, 0.5, 0.1, 0.325),
        (100, 1.0, 4, 0.5, 0.1, 0.1),
        (100, 1.5, 4, 0.5, 0.1, 0.1),
        (100, 1.0, 4, 0.3, 0.0, 0.0),
        (100, 0.6, 4, 0.2, 1.0, 1.0),
        (100, 0.25, 4, 0.0, 0.0, 0.75),
        (100, 0.995, 4, 0.99, 0.0, 0.5),
        # A run so short that it falls while it rises.
        (1, 0.75, 4, 0.5, 0.1, 0.4 * 0.55),
    ],
)
def test_by_hand(
    step: int, progress: float, warmup_steps: int, decay_from: float, final: float, factor: float
) -> None:
    found = warmup_stable_decay(
        step, progress, warmup_steps=warmup_steps, decay_from=decay_from, final=final
    )
    assert found == pytest.approx(factor)


def test_it_never_jumps() -> None:
    """In a run of 1,000 steps no two neighbours are further apart than the steepest part is."""
    factors = [
        warmup_stable_decay(step, step / 1000, warmup_steps=100, decay_from=0.3, final=0.05)
        for step in range(1001)
    ]
    changes = [after - before for before, after in itertools.pairwise(factors)]
    assert max(changes) == pytest.approx(1 / 101)
    assert min(changes) == pytest.approx(-0.95 / 700)
    assert sum(change > 0 for change in changes) == 100
    assert sum(change < 0 for change in changes) == 700
