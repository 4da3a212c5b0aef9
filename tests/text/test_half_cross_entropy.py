"""Cross entropy in bf16 against torch's in fp64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_text import logits
from fractus_text.embedding import TiedEmbedding
from fractus_text.half_cross_entropy import half_cross_entropy

B, C, D_MODEL, V = 12, 25, 64, 500


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, C, D_MODEL, generator=draw).bfloat16()
    weight = (0.3 * torch.randn(V, D_MODEL, generator=draw)).bfloat16()
    return hidden, weight, torch.randint(V, (B, C), generator=draw)


def error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("at_once", "columns"), [(2**24, 4096), (V * 70, 4096), (V, 4096), (V, 9)])
def test_loss_answers_and_gradients(
    monkeypatch: pytest.MonkeyPatch, at_once: int, columns: int
) -> None:
    """By single rows, and by 70, which end within a stream."""
    monkeypatch.setattr(logits, "MOST", at_once)
    monkeypatch.setattr("fractus_text.half_cross_entropy.COLUMNS", columns)
    hidden, weight, targets = inputs()
    h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
    expected_logits = h @ w.T
    expected = F.cross_entropy(expected_logits.flatten(0, 1), targets.flatten())
    (3 * expected).backward()
    hidden.requires_grad_()
    weight.requires_grad_()
    loss, answers = half_cross_entropy(hidden, weight, targets)
    (3 * loss).backward()
    assert loss.dtype is torch.float32
    chosen = expected_logits[:, -1].gather(1, answers.unsqueeze(1)).squeeze(1)
    best = expected_logits[:, -1].max(-1).values
    assert answers.shape == (B,) and ((best - chosen) <= best / 2**7).all()  # as near as bf16 is
    # A loss in bf16 would be off by up to 2e-3 of itself.
    assert abs(loss.item() - expected.item()) < 3e-4 * expected.item()
    assert h.grad is not None and w.grad is not None
    assert hidden.grad is not None and weight.grad is not None
    assert error(hidden.grad, h.grad) < 0.01
    # Single rows added up in bf16 lose more.
    assert error(weight.grad, w.grad) < (0.01 if at_once > V else 0.05)


def test_without_gradients_the_loss_is_the_same() -> None:
    hidden, weight, targets = inputs()
    with torch.no_grad():
        alone, _ = half_cross_entropy(hidden, weight, targets)
    weight.requires_grad_()
    assert half_cross_entropy(hidden, weight, targets)[0].item() == alone.item()


def test_a_certain_and_wrong_answer_costs_what_it_should() -> None:
    """60 nats: below what a probability in fp16 can say, not in bf16."""
    hidden = torch.tensor([[[60.0]]], dtype=torch.bfloat16)
    weight = torch.tensor([[1.0], [0.0]], dtype=torch.bfloat16)
    loss, answers = half_cross_entropy(hidden, weight, torch.tensor([[1]]))
    assert loss.item() == pytest.approx(60, 0.01) and answers.tolist() == [0]


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
