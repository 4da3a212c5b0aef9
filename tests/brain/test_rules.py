"""What the differences of several lanes make of a brain, against sums done by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn
from toy_brains import SIZE, Part, ToyLane, Vector, core_of, delta, head_of

from fractus_core.brain.config import Rule
from fractus_core.brain.directory import BrainDirectory
from fractus_core.brain.rules import distance, moved
from fractus_core.errors import FractusError

CLOSE = {"rtol": 0, "atol": 1e-6}
"""A few roundings in single precision of numbers around 1."""


def join_all(brain: Path, frontends: Sequence[str], rule: Rule) -> list[ToyLane]:
    lanes = [ToyLane(brain, i, frontend=name, rule=rule) for i, name in enumerate(frontends)]
    for lane in lanes:
        assert np.array_equal(lane.core.get(), lanes[0].core.get())  # what the first brought
    return lanes


def learn_all(lanes: Sequence[ToyLane]) -> list[Vector]:
    """Each something of its own; returns the differences of their cores."""
    for i, lane in enumerate(lanes):
        lane.learn(delta(i), 0.5 * delta(100 + i))
    return [delta(i) for i in range(len(lanes))]


# ----------------------------------------------------------------------------------------- averaged


@pytest.mark.parametrize("stay", [True, False])
@pytest.mark.parametrize("order", [(0,), *permutations(range(3)), (4, 1, 0, 3, 2)], ids=str)
@pytest.mark.parametrize("rule", ["auto", "mean"])
def test_a_round_leaves_the_mean(
    brain: Path, rule: Rule, order: tuple[int, ...], stay: bool
) -> None:
    """Whoever comes first, and also when the first has gone before the last comes."""
    lanes = join_all(brain, ["text"] * len(order), rule)
    learn_all(lanes)
    cores = [lane.core.get() for lane in lanes]
    heads = [lane.head.get() for lane in lanes]
    for number in order:
        lanes[number].exchange()
        if not stay:
            lanes[number].leave()
    np.testing.assert_allclose(core_of(brain), np.mean(cores, axis=0), **CLOSE)
    np.testing.assert_allclose(head_of(brain, "text"), np.mean(heads, axis=0), **CLOSE)


def test_a_lane_takes_what_is_there(brain: Path) -> None:
    lanes = join_all(brain, ["text", "text"], "auto")
    base = lanes[0].core.get()
    one, two = learn_all(lanes)
    lanes[0].exchange()
    np.testing.assert_allclose(lanes[0].core.get(), base + one / 2, **CLOSE)
    np.testing.assert_allclose(lanes[1].core.get(), base + two, **CLOSE)  # has not come yet
    lanes[1].exchange()
    for part in (lanes[1].core.get(), core_of(brain)):
        np.testing.assert_allclose(part, base + (one + two) / 2, **CLOSE)


def test_many_rounds(brain: Path) -> None:
    """Each gives a third of all that it ever learns, in whatever order they come."""
    lanes = join_all(brain, ["text"] * 3, "auto")
    expected = lanes[0].core.get()
    for turn, order in enumerate(permutations(range(3))):
        for number in order:
            by = delta(10 * turn + number)
            lanes[number].learn(by)
            expected = expected + by / 3
        for number in order:
            lanes[number].exchange()
    np.testing.assert_allclose(core_of(brain), expected, rtol=0, atol=1e-5)


def test_a_lane_that_died_counts_from_when_it_gives(brain: Path) -> None:
    first, second = lanes = join_all(brain, ["text", "text"], "auto")
    base = core_of(brain)
    one, two = learn_all(lanes)
    saved = second.checkpoint()
    second.leave()
    assert first.exchange()["n"] == 1
    np.testing.assert_allclose(core_of(brain), base + one, **CLOSE)
    second.resume(saved)
    assert second.exchange()["n"] == 2  # the first is there
    np.testing.assert_allclose(core_of(brain), base + one + two / 2, **CLOSE)


def test_a_lane_that_is_gone_for_long_does_not_count(brain: Path) -> None:
    first, second = lanes = join_all(brain, ["text", "text"], "auto")
    learn_all(lanes)
    first.exchange()
    first.leave()
    assert second.exchange()["n"] == 2
    before, by = core_of(brain), delta(7)
    second.learn(by)
    assert second.exchange()["n"] == 1
    np.testing.assert_allclose(core_of(brain), before + by, **CLOSE)


# -------------------------------------------------------------------------------- added, or of both


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("rule", [rule for rule in get_args(Rule) if rule != "nesterov"])
def test_two_of_one_kind_and_one_of_another(
    brain: Path, rule: Rule, order: tuple[int, ...]
) -> None:
    lanes = join_all(brain, ["text", "vision", "text"], rule)
    base, heads = core_of(brain), [lane.head.get() for lane in lanes]
    text, vision, other = learn_all(lanes)
    for number in order:
        lanes[number].exchange()
    expected = {
        "auto": (text + other) / 2 + vision,
        "mean": (text + other + vision) / 3,
        "sum": text + other + vision,
    }[rule]
    np.testing.assert_allclose(core_of(brain), base + expected, **CLOSE)
    # Front-ends do the same thing in each of their lanes, so theirs are averaged by any rule.
    learnt = [0.5 * delta(100 + i) for i in range(3)]
    assert np.array_equal(heads[0], heads[2])
    text_head = heads[0] + (learnt[0] + learnt[2]) / 2
    np.testing.assert_allclose(head_of(brain, "text"), text_head, **CLOSE)
    np.testing.assert_allclose(head_of(brain, "vision"), heads[1] + learnt[1], **CLOSE)


# ----------------------------------------------------------------------------------------- nesterov


@pytest.mark.parametrize("n", [1, 2, 3])
def test_nesterov_is_an_outer_sgd(brain: Path, n: int) -> None:
    """Of the mean difference, as in DiLoCo; its momentum outlives the processes."""
    lanes = join_all(brain, ["text"] * n, "nesterov")
    weights = nn.Parameter(torch.from_numpy(core_of(brain)))
    outer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    head = head_of(brain, "text")
    for turn in range(5):
        differences = [delta(10 * turn + i) for i in range(n)]
        for lane, by in zip(lanes, differences, strict=True):
            lane.learn(by, by)
        for lane in lanes:
            lane.exchange()
        weights.grad = -torch.from_numpy(np.mean(differences, axis=0))
        outer.step()
        np.testing.assert_allclose(core_of(brain), weights.detach().numpy(), rtol=0, atol=1e-5)
        if turn == 2:
            for lane in lanes:
                saved = lane.checkpoint()
                lane.leave()
                lane.resume(saved)
        head = head + np.mean(differences, axis=0)
    np.testing.assert_allclose(head_of(brain, "text"), head, rtol=0, atol=1e-5)  # no outer step


# -------------------------------------------------------------------------------------- the details


def test_what_is_no_floating_point_number_is_the_last_ones(brain: Path) -> None:
    first, second = join_all(brain, ["text", "text"], "auto")
    second.core.count.fill_(2**53 + 1)  # which no double is
    for lane in (first, second):
        lane.exchange()
    assert second.core.count == 2**53 + 1
    assert first.core.count == 0
    third = ToyLane(brain, 2)
    assert third.core.count == 2**53 + 1
    assert third.core.count.dtype == torch.int64
    first.exchange()
    assert BrainDirectory(brain).snapshot().weights["engine"]["count"] == 0


@pytest.mark.parametrize("part", ["core", "head"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_sick_lane_gives_nothing(brain: Path, part: str, value: float) -> None:
    lanes = join_all(brain, ["text", "text"], "auto")
    learn_all(lanes)
    with torch.no_grad():
        getattr(lanes[0], part).rest[1, 1] = value
    before = core_of(brain), head_of(brain, "text")
    with pytest.raises(FractusError, match=f"'text' has weights that are not finite; .*{brain}"):
        lanes[0].exchange()
    assert np.array_equal(core_of(brain), before[0])
    assert np.array_equal(head_of(brain, "text"), before[1])
    lanes[1].exchange()
    assert np.isfinite(lanes[1].core.get()).all()


def test_moved() -> None:
    parts = [Part(seed).state_dict() for seed in range(3)]
    found = moved(*parts, 0.25)
    brain, base, own = (np.concatenate([p["first"], p["rest"].ravel()]) for p in parts)
    both = torch.cat([found["first"], found["rest"].flatten()]).numpy()
    np.testing.assert_allclose(both, brain + 0.25 * (own - base), **CLOSE)
    assert found["count"] == 2
    assert found["count"].data_ptr() != parts[2]["count"].data_ptr()


def test_drift_is_how_far_it_had_gone(brain: Path) -> None:
    lanes = join_all(brain, ["text", "text"], "auto")
    base = core_of(brain)
    one, _ = learn_all(lanes)
    figures = lanes[0].exchange()
    now = base + one / 2
    assert figures["drift"] == pytest.approx(
        np.linalg.norm(base + one - now) / np.linalg.norm(now), rel=1e-5
    )
    assert figures == {"exchange": 3, "lanes": 2, "n": 2, "drift": figures["drift"]}
    zero = {"w": torch.zeros(SIZE)}
    assert distance(zero, zero) == 0
