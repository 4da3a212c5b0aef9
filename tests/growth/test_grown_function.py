"""Growth keeps the function: logits, with which a warm stream goes on, stay as they were."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from small_models import difference, grow, trained

EXACT = 1e-4


@pytest.fixture(scope="module")
def model() -> Any:
    return trained()


WIDER = {"d_model": 32, "n_heads": 4}


@pytest.mark.parametrize(
    "fields",
    [
        WIDER,
        {"d_model": 48, "n_heads": 6},
        {"n_layers": 3},
        {"n_layers": 5},
        {"expert_rank": 24},
        {"d_ff": 40},
        {"coupling_rank": 5},
        {"n_layers": 4, "expert_rank": 16, "d_ff": 32, **WIDER},
    ],
    ids=str,
)
def test_exact(model: Any, fields: dict[str, int]) -> None:
    assert difference(model, grow(model, fields)).max() < EXACT


def test_exact_for_many_engines() -> None:
    """Of all sizes and switches, trained a little, grown in several ways at once."""
    for seed in range(8):
        draw = random.Random(seed)
        heads, d_head = draw.choice([1, 2, 3]), draw.choice([8, 16])
        switches: dict[str, Any] = {
            "n_levels": draw.choice([1, 2, 3]),
            "expert_rank": draw.choice([0, 8]),
            "output_gate": draw.random() < 0.7,
            "token_shift": draw.random() < 0.7,
            "thought_stride": draw.choice([0, 5]),
            "decay": draw.choice(["golden", "none"]),
            "routing": draw.choice(["token", "token", "chunk"]),
            "n_layers": draw.choice([1, 2]),
            "top_k": draw.choice([1, 2, 4]),
        }
        small = trained(seed, steps=8, d_model=heads * d_head, n_heads=heads, **switches)
        times = draw.choice([1, 2, 3])
        fields = {
            "d_model": times * heads * d_head,
            "n_heads": times * heads,
            "n_layers": switches["n_layers"] + draw.choice([0, 1, 3]),
            "d_ff": draw.choice([16, 24, 48]),
        }
        error = difference(small, grow(small, fields, seed))
        assert error.max() < EXACT, (seed, switches, fields, error.max())


def test_growing_again_and_again(model: Any) -> None:
    twice = grow(model, {"d_model": 32, "n_heads": 4, "n_layers": 3})
    again = grow(twice.model, {"d_model": 64, "n_heads": 8, "n_layers": 5})
    again.growths[:0] = twice.growths
    assert difference(model, again).max() < EXACT


def test_a_width_that_is_no_multiple() -> None:
    """Exact but for the thought, whose mean cannot enter; without it, exact."""
    wider = {"d_model": 40, "n_heads": 5}
    thoughtless = trained(thought_stride=0)
    error = difference(thoughtless, grow(thoughtless, wider))
    assert error.median() < EXACT
    assert error.max() < 50 * EXACT  # LayerNorm's epsilon counts for a little more
    model = trained()
    assert difference(model, grow(model, wider)).median() < 50 * EXACT


def test_oscillators(model: Any) -> None:
    error = difference(model, grow(model, {"n_oscillators": 8, "coupling_rank": 4}))
    assert error.median() < EXACT
    assert error.mean() < 10 * EXACT


def test_experts_are_those_of_the_nearest_phase(model: Any) -> None:
    """Nearer to the old function than if the copies were dealt out otherwise."""
    grown = grow(model, {"n_experts": 8})
    near = difference(model, grown).mean()
    with torch.no_grad():
        for name, parameter in grown.model.parameters().items():
            if "experts.experts" in name:
                parameter.copy_(parameter.roll(2, 0))
    assert near < 0.5 * difference(model, grown).mean()


def test_heads_keep_their_decays(model: Any) -> None:
    grown = grow(model, WIDER).model.engine
    assert grown.config.decay_heads == 2
    old = model.engine.log_decay
    assert torch.equal(grown.log_decay, torch.cat([old, old]))
    again = grow(grow(model, WIDER).model, {"d_model": 80, "n_heads": 10}).model.engine
    assert torch.equal(again.log_decay, torch.cat([old] * 5))
