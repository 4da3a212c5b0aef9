"""Sampling against plain Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from fractus_text.sampling import Sampler, write

LOGITS = [1.5, -0.5, 0.0, 2.5, -3.0, 1.0, 0.7, -1.2]


def by_hand(
    logits: list[float],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    seen: Iterable[int] = (),
) -> list[float]:
    """The probability of each token."""
    scores = list(logits)
    for token in set(seen):
        score = scores[token]
        scores[token] = score / repetition_penalty if score > 0 else score * repetition_penalty
    weights = {token: math.exp(score / temperature) for token, score in enumerate(scores)}
    order = sorted(weights, key=weights.__getitem__, reverse=True)
    if top_k:
        order = order[:top_k]
    total = sum(weights[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        kept.append(token)
        mass += weights[token] / total
        if mass >= top_p:
            break
    total = sum(weights[token] for token in kept)
    return [weights[t] / total if t in kept else 0.0 for t in range(len(logits))]


def draw(sampler: Sampler, number: int, logits: list[float] = LOGITS) -> list[int]:
    tensor = torch.tensor(logits)
    return [sampler.choose(tensor) for _ in range(number)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_k": 1},
        {"top_k": 100},
        {"top_p": 0.6},
        {"top_p": 0.9},
        {"top_p": 0.01},
        {"temperature": 1.7, "top_k": 5, "top_p": 0.8},
        {"temperature": 0.6, "top_k": 4, "top_p": 0.99},
    ],
    ids=str,
)
def test_probabilities(given: dict[str, Any]) -> None:
    number = 2000
    expected = by_hand(LOGITS, **given)
    counts = Counter(draw(Sampler(**given, seed=3), number))
    for token, probability in enumerate(expected):
        # Five standard deviations; what must not be drawn has none.
        spread = 5 * math.sqrt(number * probability * (1 - probability))
        assert abs(counts[token] - number * probability) <= spread, (token, probability)


def test_the_penalty_of_what_was_there() -> None:
    given: dict[str, Any] = {"repetition_penalty": 1.8, "temperature": 0.9}
    seen = [0, 3, 3, 4, 2]
    sampler = Sampler(**given, seed=1)
    sampler.saw(torch.tensor(seen[:2]), len(LOGITS))
    sampler.saw(torch.tensor(seen[2:]), len(LOGITS))
    expected = by_hand(LOGITS, **given, seen=seen)
    assert expected[3] < 0.6 * by_hand(LOGITS, temperature=0.9)[3]
    counts = Counter(draw(sampler, 2000))
    for token, probability in enumerate(expected):
        spread = 5 * math.sqrt(2000 * probability * (1 - probability))
        assert abs(counts[token] - 2000 * probability) <= spread, (token, probability)


def test_the_penalty_makes_nothing_likelier() -> None:
    for logit in (-2.0, -0.1, 0.0, 0.1, 2.0):
        logits = [logit, 0.5, -0.5]
        penalised = by_hand(logits, repetition_penalty=2.0, seen=[0])
        assert penalised[0] <= by_hand(logits)[0]
        sampler = Sampler(repetition_penalty=2.0)
        sampler.saw(torch.tensor([0]), 3)
        counts = Counter(draw(sampler, 1000, logits))
        spread = 5 * math.sqrt(1000 * penalised[0] * (1 - penalised[0]))
        assert abs(counts[0] - 1000 * penalised[0]) <= spread


def test_temperature_0_takes_the_likeliest() -> None:
    assert set(draw(Sampler(temperature=0.0), 20)) == {3}
    sampler = Sampler(temperature=0.0, repetition_penalty=5.0)
    sampler.saw(torch.tensor([3]), len(LOGITS))
    assert set(draw(sampler, 20)) == {0}


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-30, 1e-45, 1e-300])
def test_a_low_temperature_is_nearly_0(temperature: float) -> None:
    assert set(draw(Sampler(temperature=temperature), 20)) == {3}


def test_a_high_temperature_is_nearly_even() -> None:
    counts = Counter(draw(Sampler(temperature=100.0, seed=2), 2000))
    assert max(counts.values()) - min(counts.values()) < 120
    assert len(counts) == len(LOGITS)


@pytest.mark.parametrize("scale", [1e4, 1e30])
def test_extreme_logits(scale: float) -> None:
    logits = [scale * logit for logit in LOGITS]
    for given in ({}, {"top_k": 2}, {"top_p": 0.5}, {"repetition_penalty": 1.1}):
        assert set(draw(Sampler(**given), 20, logits)) == {3}  # type: ignore[arg-type]


def test_half_precision_logits() -> None:
    assert Sampler(temperature=0.0).choose(torch.tensor(LOGITS, dtype=torch.bfloat16)) == 3
    assert Sampler(top_p=0.01).choose(torch.tensor(LOGITS, dtype=torch.bfloat16)) == 3


def test_the_seed_decides() -> None:
    again = [draw(Sampler(seed=seed), 50) for seed in (5, 5, 6)]
    assert again[0] == again[1] != again[2]
    torch.manual_seed(0)  # and no other generator
    before = torch.get_rng_state()
    assert draw(Sampler(seed=5), 50) == again[0]
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------------ write


class Diary:
    """A stream whose logits make its next token follow the one that it read last."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def _answer(self, token: int) -> tuple[Tensor, Tensor]:
        logits = torch.zeros(1, 10)
        logits[0, (token + 1) % 10] = 50.0
        return logits, torch.ones(1)

    def read(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        self.events.append(("read", observations[0].tolist()))
        return self._answer(int(observations[0, -1]))

    def tick(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        self.events.append(("tick", observation.tolist()))
        return self._answer(int(observation))


def test_the_prompt_is_read_and_each_token_fed_back() -> None:
    stream = Diary()
    tokens = write(stream, torch.tensor([7, 2, 4]), Sampler(), stop=9)  # type: ignore[arg-type]
    assert stream.events == []
    assert list(tokens) == [5, 6, 7, 8]
    assert stream.events == [
        ("read", [7, 2, 4]),
        *(("tick", [token]) for token in (5, 6, 7, 8)),
    ]


def test_it_goes_on_for_ever_and_lazily() -> None:
    stream = Diary()
    tokens = write(stream, torch.tensor([0]), Sampler(), stop=99)  # type: ignore[arg-type]
    assert [next(tokens) for _ in range(25)] == [i % 10 for i in range(1, 26)]
    assert len(stream.events) == 25


def test_the_prompt_and_what_was_written_are_penalised() -> None:
    """So strongly that no token comes twice, until none is left."""

    class Even(Diary):
        def _answer(self, token: int) -> tuple[Tensor, Tensor]:
            return torch.full((1, 10), 20.0), torch.ones(1)

    sampler = Sampler(repetition_penalty=100.0, seed=4)
    tokens = write(Even(), torch.tensor([3, 8]), sampler, stop=99)  # type: ignore[arg-type]
    assert sorted(next(tokens) for _ in range(8)) == [0, 1, 2, 4, 5, 6, 7, 9]
