"""What a rank of several is foretold to take."""

from __future__ import annotations

from typing import Any

import torch

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, Frontend
from fractus_core.engine import PRESETS
from fractus_text.embedding import TiedEmbedding
from fractus_trainers.plugin import fractus_trainers
from fractus_trainers.preflight import estimate, whole_at_once

CONFIG = EngineConfig(**PRESETS["stage1"])
VOCABULARY = 1024


def build() -> tuple[ContinuousThoughtEngine, list[Frontend]]:
    torch.manual_seed(0)
    head: Any = TiedEmbedding(VOCABULARY, CONFIG.d_model)
    return ContinuousThoughtEngine(CONFIG), [head]


def options(**given: Any) -> dict[str, Any]:
    [spec] = [spec for spec in fractus_trainers() if spec.name == "gpu1b"]
    defaults = {option.name: option.default for option in spec.options}
    return defaults | {"lr": 0.01, "optimizer": "adamw", "device": "cpu", **given}


def test_sharding_divides_what_is_sharded() -> None:
    engine, [head] = build()
    modules: list[Any] = [engine, head]
    numbers = sum(p.numel() for module in modules for p in module.parameters())
    block = sum(p.numel() for p in engine.blocks[0].parameters())
    outside = numbers - CONFIG.n_layers * block
    gathered = whole_at_once(build)
    assert gathered == 4 * (2 * outside + 3 * block)

    whole = estimate(build, options(precision="fp32"), 2)
    part = whole.parted(4, gathered)
    assert whole.weights >= 4 * numbers
    for name in ("weights", "gradients", "optimizer"):
        assert abs(4 * getattr(part, name) - getattr(whole, name)) < 4
    assert part.activations == whole.activations
    # Weights, gradients, and AdamW's two moments.
    saved = 3 / 4 * 4 * 4 * numbers
    assert abs(whole.worst - part.worst - (saved - gathered)) < 0.01 * saved


def test_processes_have_no_copies_in_bf16() -> None:
    alone = estimate(build, options(precision="bf16"), 2)
    several = estimate(build, options(precision="bf16", parallel="ddp"), 2)
    assert alone.copies > 0
    assert several.copies == 0
