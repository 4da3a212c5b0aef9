"""bf16 copies of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fractus_text.embedding import TiedEmbedding
from fractus_trainers.half import HalfWeights


def test_copies_compute_and_masters_learn() -> None:
    torch.manual_seed(0)
    large, small = nn.Linear(128, 128), nn.Linear(128, 3)
    module = nn.Sequential(large, small)
    master, half = large.weight, HalfWeights(module)
    x = torch.randn(5, 128)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):  # three chunks of one step
            with half.in_place():
                assert large.weight is half.copies[master]
                module(x).float().sum().backward()
    assert large.weight is master
    assert set(half.copies) == {master}  # biases and small matrices are used as they are
    assert half.copies[master].grad is None
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
    copy = half.copies[module.weight]
    for size in (256.0, *[1.0] * 20):
        (copy * size).sum().backward()
    assert module.weight.grad is not None
    assert (module.weight.grad == 276).all()


def test_tokens_are_read_from_the_master() -> None:
    """Their gradient, of a few rows, joins that of the head, which has all."""
    torch.manual_seed(0)
    embedding = TiedEmbedding(600, 64)
    tokens, targets = torch.randint(600, (2, 4, 8))

    def gradient() -> torch.Tensor:
        embedding.weight.grad = None
        vectors = embedding.embed(tokens)
        assert vectors.dtype is torch.float32
        (embedding.score(vectors, targets).loss + vectors.square().sum()).backward()
        assert embedding.weight.grad is not None and not embedding.weight.grad.is_sparse
        return embedding.weight.grad

    expected = gradient()
    half = HalfWeights(embedding)
    master = embedding.weight
    with half.in_place(), torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = embedding.embed(tokens)
        master.grad = None
        (embedding.score(vectors, targets).loss + vectors.square().sum()).backward()
    assert vectors.dtype is torch.float32 and torch.equal(vectors, master[tokens])
    assert master.grad is not None and not master.grad.is_sparse
    assert (master.grad - expected).norm() < 0.01 * expected.norm()


def test_refreshed_after_the_weights_changed() -> None:
    module = nn.Linear(128, 128)
    half = HalfWeights(module)
    with torch.no_grad():
        module.weight.fill_(0.3)
    half.refresh()
    assert (half.copies[module.weight] == torch.tensor(0.3).bfloat16()).all()


def test_nothing_to_copy() -> None:
    half = HalfWeights(nn.Linear(2, 2))
    half.refresh()
    with half.in_place():
        pass
    assert half.copies == {}


def test_gradients_are_collected_one_by_one() -> None:
    """While a backward pass is under way, no two bf16 gradients are there at once."""
    module = nn.Sequential(*[nn.Linear(128, 128, bias=False) for _ in range(4)])
    half = HalfWeights(module)
    there = []

    def look(copy: torch.Tensor) -> None:
        there.append(sum(c.grad is not None for c in half.copies.values()))

    for copy in half.copies.values():
        copy.register_post_accumulate_grad_hook(look)
    with half.in_place():
        module(torch.randn(3, 128).bfloat16()).float().sum().backward()
    assert there == [0] * 4  # when the hook that was registered before has run
    assert all(master.grad is not None for master in half.copies)


def test_tied_weights_have_one_copy() -> None:
    first, second = nn.Linear(128, 128), nn.Linear(128, 128)
    second.weight = first.weight
    half = HalfWeights(nn.Sequential(first, second))
    with half.in_place():
        assert first.weight is second.weight
        assert first.weight.dtype is torch.bfloat16
    assert first.weight is second.weight
    assert first.weight.dtype is torch.float32


def test_masters_are_back_after_an_error() -> None:
    module = nn.Linear(128, 128)
    half, master = HalfWeights(module), module.weight
    with pytest.raises(ZeroDivisionError), half.in_place():
        1 / 0  # noqa: B018
    assert module.weight is master


def test_a_frozen_master_has_a_frozen_copy() -> None:
    module = nn.Linear(128, 128)
    half = HalfWeights(module)
    module.weight.requires_grad_(False)
    half.refresh()
    with half.in_place(), torch.autocast("cpu", dtype=torch.bfloat16):
        module(torch.randn(2, 128)).float().sum().backward()
    assert module.weight.grad is None
    assert module.bias.grad is not None
