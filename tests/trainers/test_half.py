"""bf16 copies of the weights."""

from __future__ import annotations

import torch
from torch import nn

from fractus_trainers.half import HalfWeights


def test_copies_compute_and_masters_learn() -> None:
    torch.manual_seed(0)
    large, small = nn.Linear(128, 128), nn.Linear(128, 3)
    module = nn.Sequential(large, small)
    half = HalfWeights(module)
    x = torch.randn(5, 128)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):  # three chunks of one step
            half(x).float().sum().backward()
            half.collect()
    assert set(half.copies) == {"0.weight"}  # biases and small matrices are used as they are
    assert half.copies["0.weight"].grad is None
    rounded = large.weight.detach().bfloat16().float()
    hidden = (x.bfloat16().float() @ rounded.T + large.bias).bfloat16().float()
    upstream = small.weight.detach().sum(0)
    expected = 3 * torch.outer(upstream, x.sum(0))
    assert large.weight.grad is not None and large.weight.grad.dtype is torch.float32
    error = (large.weight.grad - expected).norm() / expected.norm()
    assert error < 0.01
    assert small.weight.grad is not None
    torch.testing.assert_close(
        small.weight.grad, 3 * hidden.sum(0).expand(3, -1), rtol=0.02, atol=0.05
    )


def test_sums_are_of_fp32_precision() -> None:
    """In bf16 256 + 1 is 256."""
    module = nn.Linear(128, 128, bias=False)
    half = HalfWeights(module)
    copy = half.copies["weight"]
    for size in (256.0, *[1.0] * 20):
        copy.grad = torch.full_like(copy, size)
        half.collect()
    assert module.weight.grad is not None
    assert (module.weight.grad == 276).all()


def test_refreshed_after_the_weights_changed() -> None:
    module = nn.Linear(128, 128)
    half = HalfWeights(module)
    with torch.no_grad():
        module.weight.fill_(0.3)
    half.refresh()
    assert (half.copies["weight"] == torch.tensor(0.3).bfloat16()).all()


def test_nothing_to_copy() -> None:
    half = HalfWeights(nn.Linear(2, 2))
    half.refresh()
    half.collect()
    assert half.copies == {}
