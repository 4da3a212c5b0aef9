"""Sizes, switches and presets."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from fractus_core.engine import PRESETS, ContinuousThoughtEngine, EngineConfig
from fractus_text.embedding import TiedEmbedding


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *(
            (name, value, "at least 1")
            for name in ("d_model", "n_heads", "n_layers", "n_levels", "n_experts", "top_k", "d_ff")
            for value in (0, -2)
        ),
        *((name, 0, "at least 1") for name in ("n_oscillators", "coupling_rank")),
        *((name, -1, "at least 0") for name in ("expert_rank", "thought_stride")),
        *(
            (name, value, "positive and finite")
            for name in ("gate_kappa", "gate_temperature")
            for value in (0.0, -1.0, float("inf"), float("nan"))
        ),
        ("decay", "exponential", "one of golden, none"),
        ("phase_drive", "", "one of projection, mean"),
        ("routing", "row", "one of token, chunk"),
        ("dynamics", "original", "one of default, reference"),
        ("n_heads", 3, "a multiple of n_heads = 3"),
        ("top_k", 5, "at most n_experts = 4"),
        ("d_model", 128.0, "of type int"),
        ("d_model", "128", "of type int"),
        ("n_heads", True, "of type int"),
        ("n_heads", None, "of type int"),
        ("gate_kappa", "4", "of type float"),
        ("output_gate", 1, "of type bool"),
        ("decay", None, "of type str"),
    ],
)
def test_invalid_value(field: str, value: Any, allowed: str) -> None:
    # A multiple is asked of d_model, whichever of the two was set.
    named = "d_model = 128" if (field, value) == ("n_heads", 3) else f"{field} = {value!r}"
    with pytest.raises(ValueError, match=re.escape(f"{named}: must be {allowed}")):
        EngineConfig(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decay", "golden"),
        ("output_gate", True),
        ("token_shift", True),
        ("phase_drive", "projection"),
        ("routing", "token"),
        ("thought_stride", 128),
        ("final_norm", True),
    ],
)
def test_no_half_of_the_reference(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value!r}: must be .* in the reference"):
        EngineConfig.reference(**{field: value})
    with pytest.raises(ValueError, match="in the reference dynamics"):
        EngineConfig(dynamics="reference")


def test_unknown_field() -> None:
    with pytest.raises(TypeError, match="d_modle"):
        EngineConfig(**{"d_modle": 128})


def test_is_a_value() -> None:
    config = EngineConfig(gate_kappa=2)  # an int will do for a float
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 256  # type: ignore[misc]
    assert EngineConfig(**json.loads(json.dumps(config.to_json()))) == config
    assert EngineConfig(d_model=96, n_heads=3).d_head == 32
    assert EngineConfig(gate_kappa=4.0, gate_temperature=2.5).gate_sharpness == 1.6


def test_reference_switches() -> None:
    config = EngineConfig.reference(d_model=64, gate_temperature=2.5)
    assert (config.d_model, config.gate_temperature) == (64, 2.5)
    assert config.dynamics == "reference"
    assert (config.decay, config.phase_drive, config.routing) == ("none", "mean", "chunk")
    assert not (config.output_gate or config.token_shift or config.final_norm)
    assert config.thought_stride == 0


@pytest.mark.parametrize(
    ("name", "sizes", "oscillators", "coupling_rank"),
    [
        ("stage0", (128, 2, 2, 4, 32, 128), 8, 4),
        ("stage1", (256, 4, 4, 8, 32, 256), 8, 4),
        ("stage2", (512, 8, 8, 16, 64, 512), 8, 4),
        ("stage3", (768, 12, 12, 32, 64, 768), 8, 4),
        ("stage4", (1280, 20, 16, 128, 64, 2048), 16, 8),
        ("1b", (1280, 20, 16, 128, 64, 2048), 16, 8),
    ],
)
def test_presets(name: str, sizes: tuple[int, ...], oscillators: int, coupling_rank: int) -> None:
    c = EngineConfig(**PRESETS[name])
    assert sizes == (c.d_model, c.n_heads, c.n_layers, c.n_experts, c.expert_rank, c.d_ff)
    assert (c.n_oscillators, c.coupling_rank, c.top_k) == (oscillators, coupling_rank, 2)
    assert len(PRESETS) == 6


def test_parameters_of_one_billion() -> None:
    """1,048,631,458 in the original, less its salience head of 1,281 that nothing used."""
    with torch.device("meta"):
        engine = ContinuousThoughtEngine(EngineConfig.reference(**PRESETS["1b"]))
        embedding = TiedEmbedding(50257, 1280)
    held = sum(p.numel() for p in engine.parameters())
    assert held + embedding.weight.numel() == 1_048_631_458 - 1_281 == 1_048_630_177
    idle = sum(
        p[2:].numel() for block in engine.layers for p in block.experts.experts.parameters()
    )  # a token visits 2 experts
    assert round((held - idle) / 1e6, 1) == 118.8
    assert round((held - idle + embedding.weight.numel()) / 1e6, 1) == 183.1


def test_imports_no_torch() -> None:
    code = "import sys, fractus_core.engine as e; e.PRESETS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
