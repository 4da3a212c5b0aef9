"""Muon, against torch's own and against singular values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fractus_trainers.muon import Muon, orthogonalised


def clones(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [nn.Parameter(p.detach().clone()) for p in parameters]


def steps(optimizer: torch.optim.Optimizer, gradients: list[list[torch.Tensor]]) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for row in gradients:
        for parameter, gradient in zip(parameters, row, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step()


def test_matrices_move_as_with_torchs() -> None:
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(shape)) for shape in [(16, 16), (8, 24), (24, 8), (8, 24)]]
    theirs = clones(ours)
    gradients = [[torch.randn_like(p) for p in ours] for _ in range(4)]
    steps(Muon(ours, lr=0.02, weight_decay=0.1), gradients)
    plain = torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    steps(plain, gradients)
    for found, expected in zip(ours, theirs, strict=True):
        # Both work in bf16: a batched product may round otherwise than a single one.
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_a_stack_moves_as_its_matrices() -> None:
    torch.manual_seed(1)
    stack = nn.Parameter(torch.randn(3, 8, 16))
    single = [nn.Parameter(matrix.detach().clone()) for matrix in stack]
    gradients = [torch.randn(3, 8, 16) for _ in range(3)]
    steps(Muon([stack], lr=0.02, weight_decay=0.1), [[g] for g in gradients])
    steps(Muon(single, lr=0.02, weight_decay=0.1), [list(g) for g in gradients])
    torch.testing.assert_close(stack.detach(), torch.stack([p.detach() for p in single]))


def test_a_convolution_is_one_matrix() -> None:
    torch.manual_seed(2)
    kernel = nn.Parameter(torch.randn(8, 3, 5, 5))
    matrix = nn.Parameter(kernel.detach().flatten(1).clone())
    gradients = [torch.randn(8, 3, 5, 5) for _ in range(3)]
    steps(Muon([kernel], lr=0.02, flatten=True), [[g] for g in gradients])
    steps(Muon([matrix], lr=0.02), [[g.flatten(1)] for g in gradients])
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach())


@pytest.mark.parametrize("shape", [(1, 16, 16), (4, 8, 40), (4, 40, 8)])
def test_singular_values_come_near_one(shape: tuple[int, ...]) -> None:
    """And the directions stay: the result is near U V^T of the singular value decomposition."""
    torch.manual_seed(3)
    x = torch.randn(shape)
    [y] = orthogonalised([x])
    assert y.shape == x.shape
    values = torch.linalg.svdvals(y)
    assert values.min() > 0.5
    assert values.max() < 1.4
    U, _, Vh = torch.linalg.svd(x, full_matrices=False)
    cosine = torch.cosine_similarity(y.flatten(), (U @ Vh).flatten(), dim=0)
    assert cosine > 0.97


def test_state_is_saved_and_restored() -> None:
    torch.manual_seed(4)
    whole = [nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.randn(2, 8, 8))]
    halves = clones(whole)
    gradients = [[torch.randn_like(p) for p in whole] for _ in range(6)]
    steps(Muon(whole, lr=0.02), gradients)
    first = Muon(halves, lr=0.02)
    steps(first, gradients[:3])
    second = Muon(halves, lr=0.5)
    second.load_state_dict(first.state_dict())
    steps(second, gradients[3:])
    for found, expected in zip(halves, whole, strict=True):
        assert torch.equal(found, expected)


def test_without_a_gradient_nothing_moves() -> None:
    parameter = nn.Parameter(torch.ones(4, 4))
    Muon([parameter], lr=0.1, weight_decay=0.5).step()
    assert torch.equal(parameter.detach(), torch.ones(4, 4))
