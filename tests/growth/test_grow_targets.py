"""What an engine can become, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fractus_core.engine import PRESETS, ContinuousThoughtEngine, EngineConfig
from fractus_core.errors import FractusError
from fractus_core.growth.target import KINDS, changes, steps, target

STAGE0 = EngineConfig(**PRESETS["stage0"])


@pytest.mark.parametrize(
    ("old", "fields", "says"),
    [
        ({}, {"n_layers": 1}, "n_layers is 2 and cannot shrink to 1"),
        ({}, {"d_model": 64, "n_heads": 1}, "d_model is 128 and cannot shrink to 64"),
        ({}, {"expert_rank": 0}, "expert_rank is 32 and cannot shrink to 0"),
        ({}, {"d_model": 256}, "makes heads of 128, and they are of 64"),
        ({}, {"d_model": 200}, "makes heads of 100, and they are of 64"),
        ({}, {"n_heads": 4}, "makes heads of 32, and they are of 64"),
        ({}, {"d_model": 200, "n_heads": 3}, "a multiple of n_heads = 3"),
        ({}, {"d_ff": 130}, "d_ff = 130: must be a multiple of 8"),
        ({}, {"top_k": 3}, "top_k is 2 and cannot become 3"),
        ({}, {"decay": "none"}, "decay is 'golden' and cannot become 'none'"),
        ({}, {"n_oscillators": 12}, "n_oscillators is 8 and cannot become 12"),
        ({"phase_drive": "mean"}, {"n_oscillators": 16}, "phase_drive"),
        ({"expert_rank": 0}, {"expert_rank": 8}, "dense experts stay dense"),
        ({"final_norm": False}, {"d_model": 256, "n_heads": 4}, "final_norm"),
    ],
)
def test_refused(old: dict[str, Any], fields: dict[str, Any], says: str) -> None:
    with pytest.raises(FractusError) as error:
        target(EngineConfig(**PRESETS["stage0"] | old), fields)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_reference_dynamics_is_refused() -> None:
    with pytest.raises(FractusError, match="reference dynamics do not grow"):
        target(EngineConfig.reference(), {"n_layers": 3})


def test_the_whole_ladder() -> None:
    """Each preset grows into the next; what is not a size stays as it was."""
    engine = STAGE0
    for name in ("stage1", "stage2", "stage3", "1b"):
        smaller, engine = engine, target(engine, PRESETS[name])
        assert {k: getattr(engine, k) for k in PRESETS[name]} == PRESETS[name]
        assert engine.decay_heads == 2
        *_, (_, _, last) = steps(smaller, engine)
        assert last == engine
    assert set(changes(STAGE0, engine)) == {f for fields in KINDS.values() for f in fields}


def test_each_step_is_of_one_kind() -> None:
    found = list(steps(STAGE0, target(STAGE0, PRESETS["stage1"])))
    assert [kind for kind, _, _ in found] == ["d_ff", "experts", "width", "depth"]
    for (_, _, after), (_, before, _) in itertools.pairwise(found):
        assert after == before


# ------------------------------------------------------------------- decays of grown engines


def test_decays_are_as_they_were_by_default() -> None:
    """Values of before there was `decay_heads`."""
    engine = ContinuousThoughtEngine(EngineConfig(d_model=32, n_heads=2, d_ff=8, expert_rank=8))
    constants = (-1 / engine.log_decay.double()).tolist()
    assert [[round(c, 1) for c in row] for row in constants] == [[2.0, 4414.0], [94.0, 2.0**20]]


def test_decays_are_repeated() -> None:
    few = ContinuousThoughtEngine(EngineConfig(d_model=48, n_heads=3, d_ff=8, expert_rank=8))
    many = ContinuousThoughtEngine(
        EngineConfig(d_model=128, n_heads=8, decay_heads=3, d_ff=8, expert_rank=8)
    )
    assert torch.equal(many.log_decay, few.log_decay[[0, 1, 2, 0, 1, 2, 0, 1]])


@pytest.mark.parametrize("heads", [-1, 3])
def test_decay_heads_out_of_range(heads: int) -> None:
    with pytest.raises(ValueError, match="decay_heads = "):
        EngineConfig(n_heads=2, decay_heads=heads)
