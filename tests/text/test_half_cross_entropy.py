"""Cross entropy in bf16 against torch's in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_text import logits
from fractus_text.embedding import TiedEmbedding
from fractus_text.half_cross_entropy import half_cross_entropy


def inputs(rows: int = 300, d: int = 64, vocabulary: int = 500) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, d, generator=draw).bfloat16()
    weight = (0.3 * torch.randn(vocabulary, d, generator=draw)).bfloat16()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=draw)


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("at_once", [2**24, 500 * 70, 1])
def test_loss_and_gradients(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(logits, "MOST", at_once)
    hidden, weight, targets = inputs()
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    expected = F.cross_entropy(h @ w.T, targets)
    (3 * expected).backward()
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = half_cross_entropy(hidden, weight, targets)
    (3 * loss).backward()
    assert loss.dtype is torch.float32
    # A loss in bf16 would be off by up to 2e-3 of itself.
    assert abs(loss.item() - expected.item()) < 3e-4 * expected.item()
    assert h.grad is not None and w.grad is not None
    assert hidden.grad is not None and weight.grad is not None
    assert error(hidden.grad, h.grad) < 0.01
    # Single rows added up in bf16 lose more.
    assert error(weight.grad, w.grad) < (0.01 if at_once > 1 else 0.05)


def test_without_gradients_the_loss_is_the_same() -> None:
    hidden, weight, targets = inputs()
    with torch.no_grad():
        alone = half_cross_entropy(hidden, weight, targets)
    weight.requires_grad_()
    assert half_cross_entropy(hidden, weight, targets).item() == alone.item()


def test_a_certain_and_wrong_answer_costs_what_it_should() -> None:
    """60 nats: below what a probability in fp16 can say, not in bf16."""
    hidden = torch.tensor([[60.0]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16)
    assert half_cross_entropy(hidden, weight, torch.tensor([1])).item() == pytest.approx(60, 0.01)


def test_the_front_end_uses_it_under_autocast() -> None:
    """And the gradient of the embedding joins that of the head, though it is sparse."""
    torch.manual_seed(0)
    embedding = TiedEmbedding(300, 24)
    tokens, targets = torch.randint(300, (2, 2, 7))

    def gradient() -> tuple[float, Tensor]:
        embedding.weight.grad = None
        loss = embedding.score(embedding.embed(tokens).float(), targets).loss
        loss.backward()
        assert embedding.weight.grad is not None and not embedding.weight.grad.is_sparse
        return loss.item(), embedding.weight.grad

    loss, expected = gradient()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half_loss, actual = gradient()
    assert half_loss == pytest.approx(loss, rel=1e-3) and half_loss != loss
    assert error(actual, expected.double()) < 0.01
    logits = F.embedding(tokens, embedding.weight) @ embedding.weight.T
    dense = torch.autograd.grad(
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()), [embedding.weight]
    )[0]
    torch.testing.assert_close(expected, dense, rtol=1e-4, atol=1e-7)
