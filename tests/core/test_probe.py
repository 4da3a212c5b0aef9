"""What the probe counts, and that counting changes nothing."""

from __future__ import annotations

import math

import pytest
import torch
from engines import awake, tensors, tiny, tiny_reference, vectors, warm
from scipy.special import i0
from scipy.stats import entropy

from fractus_core.engine import PRESETS, EngineConfig
from fractus_core.engine.probe import RoutingProbe, collapse_ceiling, normalised_entropy


@pytest.mark.parametrize("hits", [[1, 1, 1, 1], [4, 3, 2, 1], [7, 0, 0, 0], [0, 5, 5, 90]])
def test_normalised_entropy(hits: list[int]) -> None:
    expected = entropy(hits) / math.log(4)
    assert normalised_entropy(torch.tensor(hits)) == pytest.approx(expected, abs=1e-12)


def test_one_expert_is_even() -> None:
    assert normalised_entropy(torch.tensor([12])) == 1.0


def histogram(hits: list[int]) -> torch.Tensor:
    """Choices (1, C, 1) with these counts, in no order."""
    chosen = torch.cat([torch.full((n,), e) for e, n in enumerate(hits)])
    return chosen[torch.randperm(len(chosen))].view(1, -1, 1)


def test_report() -> None:
    config = EngineConfig(n_experts=4, top_k=1, n_layers=2)
    probe = RoutingProbe(config)
    together, apart = torch.zeros(1, 400, 8), torch.arange(8).expand(1, 400, 8) * math.pi / 4
    # A fair share is 100, so that 9 is dead and 10 is not; over two calls both counts add up.
    first, second = [9, 10, 81, 300], [300, 91, 9, 0]
    probe.add(together, histogram(first), torch.tensor(3.0))
    probe.add(together, histogram(second), torch.tensor(1.0))
    probe.add(apart, histogram(first), torch.tensor(1.0))
    probe.add(together, histogram(first), torch.tensor(0.0))
    report = probe.report()
    assert report["lb"] == pytest.approx(2.5)  # of two chunks, summed over blocks
    assert report["lb_ceiling_ratio"] == pytest.approx(2.5 / collapse_ceiling(config))
    one, two = report["blocks"]
    assert one["hits"] == [18, 20, 162, 600]
    assert one["dead"] == 1
    assert one["entropy"] == pytest.approx(entropy(one["hits"]) / math.log(4))
    assert one["order_parameter"] == pytest.approx(0.5, abs=1e-6)
    assert two["hits"] == [309, 101, 90, 300]
    assert two["dead"] == 0
    assert two["order_parameter"] == pytest.approx(1.0)


@pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)
def test_probing_changes_no_bit(config: EngineConfig) -> None:
    engine, probe = awake(config), RoutingProbe(config)
    state, x = warm(engine), vectors(config, 3, 17)
    hidden, lb, after = engine.tick_chunk_train(x, state)
    probed = engine.tick_chunk_train(x, state, probe)
    assert torch.equal(probed[0], hidden)
    assert torch.equal(probed[1], lb)
    other = tensors(probed[2])
    assert all(torch.equal(other[name], tensor) for name, tensor in tensors(after).items())
    (hidden.square().sum() + lb).backward()
    plain = {name: p.grad for name, p in engine.named_parameters()}
    engine.zero_grad()
    (probed[0].square().sum() + probed[1]).backward()
    for name, p in engine.named_parameters():
        assert (p.grad is None) == (plain[name] is None)
        assert p.grad is None or torch.equal(p.grad, plain[name]), name


def test_counts_every_choice_and_the_lb_of_the_call() -> None:
    engine = awake(tiny(thought_stride=0))
    probe = RoutingProbe(engine.config)
    # 130 is more than one piece, and its pieces are of unequal lengths.
    lb = engine.tick_chunk_train(vectors(engine.config, 3, 130), engine.initial_state(3), probe)[1]
    report = probe.report()
    assert [sum(block["hits"]) for block in report["blocks"]] == [3 * 130 * 2] * 2
    assert report["lb"] == pytest.approx(lb.item(), rel=1e-5)


@pytest.mark.parametrize("k", [0.1, 1.0, 1.6, 4.0, 20.0])
def test_collapse_ceiling(k: float) -> None:
    config = EngineConfig(n_layers=3, gate_kappa=k)
    assert collapse_ceiling(config) == pytest.approx(3 * (i0(2 * k) / i0(k) ** 2 - 1), rel=1e-9)


def test_collapse_ceiling_of_the_original() -> None:
    config = EngineConfig.reference(**PRESETS["1b"], gate_temperature=2.5)
    assert config.gate_sharpness == 1.6
    assert collapse_ceiling(config) == pytest.approx(14.027, abs=5e-4)


def test_collapse_ceiling_of_a_sharp_gate_does_not_overflow() -> None:
    # For large k, I0(2k) / I0(k)^2 tends to sqrt(pi k).
    config = EngineConfig(n_layers=1, gate_kappa=1e6)
    assert collapse_ceiling(config) + 1 == pytest.approx(math.sqrt(math.pi * 1e6), rel=1e-3)
