"""Each optimizer learns; which weights decay, and by how much."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toys import Counting, lane, make, options

from fractus_core.api import EngineConfig
from fractus_trainers.cpu import CpuTrainer
from fractus_trainers.muon import Muon
from fractus_trainers.optimizers import DEFAULT_LR, gradient_norm, make_optimizers

NAMES = list(DEFAULT_LR)


def test_the_command_line_offers_these() -> None:
    from fractus_trainers.plugin import fractus_trainers

    for spec in fractus_trainers():
        [option] = [option for option in spec.options if option.name == "optimizer"]
        assert sorted(option.choices) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_to_count(name: str) -> None:
    """Each token is followed by the same other one, so the loss can fall to nothing."""
    config = EngineConfig(d_model=32, n_layers=1, d_ff=32, expert_rank=8)
    engine, frontend = make(config)
    trainer = CpuTrainer(options(optimizer=name, lr=0.0, warmup_steps=5), seed=0)
    trainer.prepare(engine, [lane(engine, frontend, Counting(8, 16, learnable=True))])
    steps = trainer.train(lambda: 0.0)
    losses = [next(steps).loss for _ in range(150 if name == "sgd" else 50)]
    assert losses[0] > 2.0  # ln 11 = 2.4
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_is_decoupled_and_of_matrices_alone(name: str) -> None:
    """Where the loss has no slope, a step shrinks matrices by lr * weight_decay, and that alone."""
    module = nn.ModuleDict({"linear": nn.Linear(4, 3), "embedding": nn.Embedding(5, 4)})
    before = {key: p.detach().clone() for key, p in module.named_parameters()}
    optimizers = make_optimizers(name, [module], lr=0.1, weight_decay=0.2)
    for _ in range(3):
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizers.step(0.5)
    for key, parameter in module.named_parameters():
        shrunk = 1.0 if parameter.dim() < 2 else (1 - 0.5 * 0.1 * 0.2) ** 3
        torch.testing.assert_close(parameter.detach(), before[key] * shrunk, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_trained_once(name: str) -> None:
    engine, frontend = make()
    optimizers = make_optimizers(name, [engine, frontend, frontend], lr=0.1, weight_decay=0.1)
    expected = {*engine.parameters(), *frontend.parameters()}
    assert len(optimizers.parameters) == len(expected)
    assert set(optimizers.parameters) == expected


def test_muon_takes_what_multiplies_vectors() -> None:
    engine, frontend = make()
    convolution = nn.Conv2d(3, 8, 5)
    optimizers = make_optimizers("muon", [engine, frontend, convolution], lr=0.1, weight_decay=0.1)
    muon, adamw = optimizers.optimizers
    assert isinstance(muon, Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    plain, flattened = (set(group["params"]) for group in muon.param_groups)
    assert flattened == {convolution.weight}
    assert frontend.head.weight in plain
    assert frontend.table.weight not in plain
    assert engine.confidence_head.weight not in plain  # a vector, but for its shape
    linear = {m.weight for m in engine.modules() if isinstance(m, nn.Linear)}
    experts = {p for p in engine.parameters() if p.dim() == 3}
    assert experts
    assert {*linear, *experts} - {engine.confidence_head.weight} <= plain


@pytest.mark.parametrize("name", NAMES)
def test_a_step_uses_the_factor_and_clears_the_gradients(name: str) -> None:
    moved = {}
    for factor in (1.0, 0.25):
        torch.manual_seed(0)
        module = nn.Linear(4, 4)
        before = module.weight.detach().clone()
        optimizers = make_optimizers(name, [module], lr=0.01, weight_decay=0.0)
        assert optimizers.parameters[0].grad is None
        module(torch.ones(1, 4)).square().sum().backward()
        assert optimizers.step(factor) == 0.01 * factor
        assert all(p.grad is None for p in module.parameters())
        moved[factor] = module.weight.detach() - before
    assert moved[1.0].abs().max() > 1e-4
    torch.testing.assert_close(moved[0.25], 0.25 * moved[1.0])


def test_the_gradient_norm_is_of_all_together() -> None:
    parameters = [nn.Parameter(torch.zeros(2, 2)), nn.Parameter(torch.zeros(3))]
    parameters.append(nn.Parameter(torch.zeros(9)))  # that no gradient reached
    parameters[0].grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    parameters[1].grad = torch.tensor([5.0, 6.0, 3.0])
    assert float(gradient_norm(parameters)) == pytest.approx(10.0)


def test_sgd_goes_on_where_some_parameters_have_no_momentum() -> None:
    """As in a run whose embedding was made anew; theirs begins at zero."""
    torch.manual_seed(0)
    old = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizers = make_optimizers("sgd", [old], lr=0.1, weight_decay=0.0)
    for parameter in old.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    [saved] = optimizers.state_dict()
    del saved["state"][0]
    before = [p.detach().clone() for p in old.parameters()]
    optimizers.load_state_dict([saved])
    for parameter in old.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    moved = [float((b - p.detach()).mean()) for b, p in zip(before, old.parameters(), strict=True)]
    assert moved == pytest.approx([0.1, *[0.1 * 1.9] * 3])
