"""What is timed against each other computes the same."""

from __future__ import annotations

import math

import pytest
import torch

from fractus_bench import flops
from fractus_bench.cells import attention, cross_entropy, experts, profile, scale, step
from fractus_bench.memory import peak_mb
from fractus_bench.plain import PlainEngine, PlainHead
from fractus_bench.records import Measured
from fractus_bench.training import RandomTokens, make_model, make_trainer
from fractus_core.engine import PRESETS, EngineConfig

SMALL = {
    "d_model": 32,
    "n_heads": 2,
    "n_layers": 2,
    "n_experts": 4,
    "top_k": 2,
    "expert_rank": 8,
    "d_ff": 32,
    "n_oscillators": 4,
    "coupling_rank": 2,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (experts, profile, step):
        monkeypatch.setattr(module, "MIDDLE", SMALL)


def errors(measured: Measured) -> list[float]:
    return [row["error"] for row in measured.rows]


def test_the_reference_path_trains_to_the_same_losses() -> None:
    """Over several steps: its gradients are the same too."""
    config = EngineConfig(**SMALL | {"top_k": 4, "gate_kappa": 1.0})  # no choice can flip
    fast = make_model(101, config)
    plain = make_model(101, config, engine_class=PlainEngine, head_class=PlainHead)
    for ours, theirs in zip(fast, plain, strict=True):
        theirs.load_state_dict(ours.state_dict())
    losses = []
    for model in (fast, plain):
        trainer, _ = make_trainer(*model, RandomTokens(101, 4, 64), optimizer="sgd", warmup_steps=0)
        steps = trainer.train(lambda: 0.0)
        losses.append([next(steps).loss for _ in range(6)])
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    assert losses[0][-1] < losses[0][0] - 0.003


def test_step_cells(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {name: o for name, o in step.FASTER.items() if not o.get("compile")}
    monkeypatch.setattr(step, "FASTER", quick)
    found = step.against_reference(repeats=2, vocabulary=101, chunk_len=64, reference_chunk_len=32)
    assert found.facts["loss_difference"] < 1e-5
    reference, ours, half = found.rows
    assert (reference["variant"], ours["variant"]) == ("reference path", "engine")
    assert half["precision"] == "bf16"
    assert ours["us_per_token"]["n"] == 2
    assert ours["gflops"] > 0
    heads = step.options(
        repeats=1, vocabulary=101, variants={"dense": {"head": "dense"}, "last": {"head": "last"}}
    )
    assert [row["head"] for row in heads.rows] == ["dense", "last"]
    assert len(step.dynamics(repeats=1, vocabulary=101).rows) == 2


def test_attention_forms_agree() -> None:
    found = attention.attention(repeats=1, chunk_len=16, d_head=64)
    assert max(errors(found)) < 1e-3
    memory = {row["variant"]: row["peak_mb"] for row in found.rows}
    assert memory["chunked"] < memory["prefix sum"]


def test_expert_forms_agree(small: None) -> None:
    assert max(errors(experts.dispatch(repeats=1, n_experts=8, tokens=50))) < 1e-4


def test_cross_entropies_agree() -> None:
    found = cross_entropy.cross_entropy(repeats=1, vocabulary=3000, tokens=600, d_model=16)
    assert max(errors(found)) < 1e-4
    plain, fused = found.rows
    assert fused["peak_mb"] < plain["peak_mb"]


def test_the_profile_adds_up(small: None) -> None:
    rows = profile.profile(repeats=2, vocabulary=101, optimizer="sgd").rows
    medians = {row["variant"]: row["us_per_token"]["median"] for row in rows}
    parts = [time for name, time in medians.items() if name.startswith("forward: ")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(medians["forward"], rel=0.2)


def test_scales_tell_what_the_measured_model_takes() -> None:
    """Against the counts of the very configs: products of chunks of 8 take less than of 64."""
    config = EngineConfig(**PRESETS["stage0"])
    found = scale.chunk_length(repeats=1, values=[8, 64])
    for row in found.rows:
        forward = flops.forward_flops(config, scale.VOCABULARY, row["chunk"])
        assert row["mflop_per_token"] == pytest.approx(3 * sum(forward.values()) / 1e6)
    short, long = (row["mflop_per_token"] for row in found.rows)
    assert short < long
    assert found.facts["exponent_of_flop_model"] == pytest.approx(math.log(long / short, 8))

    layers = scale.engine(repeats=1, field="n_layers", values=[1, 2, 3])
    one, two, three = (row["mflop_per_token"] for row in layers.rows)
    assert three - two == pytest.approx(two - one)
    assert one < two
    assert [row["n_layers"] for row in layers.rows] == [1, 2, 3]


def test_peak_memory_is_what_is_held_at_once() -> None:
    def call() -> None:
        for _ in range(3):
            a = torch.ones(1_000_000)
            b = torch.ones(500_000)
            del a, b

    assert peak_mb(call) == pytest.approx(6, rel=0.01)
