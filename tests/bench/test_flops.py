"""Arithmetic against real engines and torch's own counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fractus_bench import flops
from fractus_core.engine import (
    PRESETS,
    ContinuousThoughtEngine,
    EngineConfig,
    attention,
    dispatch,
    engine,
)
from fractus_text.embedding import TiedEmbedding

SMALL = {
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "n_experts": 8,
    "expert_rank": 16,
    "d_ff": 48,
    "n_oscillators": 6,
    "coupling_rank": 3,
}
CONFIGS = {
    "default": EngineConfig(**SMALL),
    "plain": EngineConfig(**SMALL, output_gate=False, token_shift=False, final_norm=False),
    "other": EngineConfig(**SMALL, phase_drive="mean", thought_stride=0, n_levels=3),
    "dense experts": EngineConfig(**SMALL | {"expert_rank": 0}),
    "reference": EngineConfig.reference(**SMALL),
    "dense reference": EngineConfig.reference(**SMALL | {"expert_rank": 0}),
}
VOCABULARY = 101


def grouped(x: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
    """Segments of x by weight's matrices; or, backward, columns of x by segments of weight."""
    return 2 * x[0] * x[1] * weight[-1]


GROUPED = {torch.ops.aten._grouped_mm: grouped}
"""Shapes to operations: torch's counter does not know this one."""


@pytest.fixture(autouse=True)
def unpadded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What experts compute in vain is no cost of the model."""
    monkeypatch.setattr(dispatch, "PADDING", 0)


def test_a_chunk_is_cut_as_by_the_engine() -> None:
    assert flops.SECTION == attention.SECTION
    assert flops.MAX_PIECE == engine.MAX_PIECE


@pytest.mark.parametrize(
    "config",
    [*CONFIGS.values(), *(EngineConfig(**sizes) for sizes in PRESETS.values())],
)
def test_parameters_are_those_of_an_engine(config: EngineConfig) -> None:
    with torch.device("meta"):
        made = ContinuousThoughtEngine(config)
        head = TiedEmbedding(VOCABULARY, config.d_model)
    count = flops.parameters(config, VOCABULARY)
    assert sum(count.values()) == sum(
        p.numel() for module in (made, head) for p in module.parameters()
    )
    experts = [p for block in made.layers for p in block.experts.parameters()]
    assert count["experts"] == sum(p.numel() for p in experts)
    assert count["head"] == sum(p.numel() for p in head.parameters())

    # The first dimension of all that experts have is that of the experts.
    active = sum(p[: config.top_k].numel() for p in experts)
    idle = count["experts"] - active
    assert flops.active_parameters(config, VOCABULARY) == count | {"experts": active}
    assert flops.bytes_per_token(config, VOCABULARY)["weights"] == 4 * (sum(count.values()) - idle)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("chunk_len", [24, 64, 200])
def test_operations_are_those_that_torch_counts(
    monkeypatch: pytest.MonkeyPatch, name: str, chunk_len: int
) -> None:
    monkeypatch.setattr(dispatch, "PADDING", 0)  # what fills padded segments is no model's work
    config, rows = CONFIGS[name], 3
    made = ContinuousThoughtEngine(config)
    x = torch.randn(rows, chunk_len, config.d_model)
    with FlopCounterMode(display=False, custom_mapping=GROUPED) as counter, torch.no_grad():
        made.tick_chunk(x, made.initial_state(rows))
    assert sum(flops.forward_flops(config, 0, chunk_len).values()) == pytest.approx(
        counter.get_total_flops() / x[..., 0].numel(), rel=1e-3
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_training_takes_three_times_the_forward_pass(name: str) -> None:
    """Nearly: nothing flows back to what was given, or from what is only carried on."""
    config, rows, chunk_len = CONFIGS[name], 3, 64
    made = ContinuousThoughtEngine(config)
    x = torch.randn(rows, chunk_len, config.d_model, requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=GROUPED) as counter:
        hidden, lb, _ = made.tick_chunk_train(x, made.initial_state(rows))
        (hidden.sum() + lb).backward()
    forward = sum(flops.forward_flops(config, 0, chunk_len).values())
    assert flops.TRAINING * forward == pytest.approx(
        counter.get_total_flops() / (rows * chunk_len), rel=0.03
    )


def test_the_head_is_one_product() -> None:
    config, tokens = CONFIGS["default"], 5
    head = TiedEmbedding(VOCABULARY, config.d_model)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        head.answer(torch.randn(1, tokens, config.d_model))
    assert flops.forward_flops(config, VOCABULARY, 1)["head"] == counter.get_total_flops() / tokens


def test_a_tick_counts_the_outer_product_too() -> None:
    """Which torch does not see as a product, since it is added in place."""
    config = CONFIGS["default"]
    made = ContinuousThoughtEngine(config)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        made.tick_chunk(torch.randn(1, 1, config.d_model), made.initial_state(1))
    D = config.d_head
    unseen = config.n_layers * config.n_heads * config.n_levels * 2 * D * (D + 1)
    assert sum(flops.forward_flops(config, 0, 1).values()) == pytest.approx(
        counter.get_total_flops() + unseen, rel=0.01
    )


def test_the_state_is_as_large_as_an_engines() -> None:
    for config in CONFIGS.values():
        state = ContinuousThoughtEngine(config).initial_state(1)
        numbers = 0

        def add(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal numbers
            numbers += tensor.numel()
            return tensor

        state.map(add)
        assert flops.bytes_per_token(config, VOCABULARY)["state"] == 2 * 4 * numbers
