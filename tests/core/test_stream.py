"""Streams that are read at a prompt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engines import assert_close, assert_identical, awake, tensors, tiny, tiny_reference
from torch import Tensor

from fractus_core.engine import EngineConfig
from fractus_core.engine.stream import Stream
from fractus_text.embedding import TiedEmbedding

VOCABULARY = 11
both = pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)


def stream(config: EngineConfig | None = None, rows: int = 3) -> Stream:
    config = config or tiny()
    torch.manual_seed(5)
    embedding = TiedEmbedding(VOCABULARY, config.d_model)
    with torch.no_grad():
        embedding.weight.mul_(30)
    return Stream(awake(config), embedding, batch_size=rows)


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (rows, length), generator=generator)


def confident(stream: Stream, logit: float) -> Stream:
    """A stream whose confidence is always the same."""
    with torch.no_grad():
        stream.engine.confidence_head.weight.zero_()
        stream.engine.confidence_head.bias.fill_(logit)
    return stream


def test_ticks_answer_as_a_chunk() -> None:
    ids = tokens(3, 9)
    logits, lb = stream().tick_chunk_train(ids)
    assert logits.shape == (3, 9, VOCABULARY)
    assert lb.shape == ()
    ticking = stream()
    for t in range(9):
        answer, confidence = ticking.tick(ids[:, t])
        assert_close(answer, logits[:, t])
        assert confidence.shape == (3,)
        assert ((confidence > 0) & (confidence < 1)).all()
    assert ticking.state.position.tolist() == [9, 9, 9]


@both
def test_read_answers_at_the_end(config: EngineConfig) -> None:
    ids = tokens(3, 9)
    training, reading = stream(config), stream(config)
    logits, _ = training.tick_chunk_train(ids)
    answer, confidence = reading.read(ids)
    torch.testing.assert_close(answer, logits[:, -1])
    assert not answer.requires_grad
    assert confidence.shape == (3,)
    assert_identical(reading.state, training.state)


def test_training_carries_no_graph() -> None:
    s = stream()
    logits, _ = s.tick_chunk_train(tokens(3, 4))
    assert logits.requires_grad
    assert not any(t.requires_grad for t in tensors(s.state).values())
    s.tick_chunk_train(tokens(3, 4))[0].sum().backward()  # the second chunk's graph is its own
    logits.sum().backward()


def test_answers_of_vectors() -> None:
    a, b = stream(), stream()
    ids = tokens(3, 1)[:, 0]
    with torch.no_grad():
        vector = a.frontend.embed(ids.unsqueeze(1))[:, 0]
    for ours, theirs in zip(a.tick_vec(vector), b.tick(ids), strict=True):
        assert torch.equal(ours, theirs)


@both
def test_thinking_stops_when_confident(config: EngineConfig) -> None:
    s = confident(stream(config), 3.0)  # a probability of 0.95
    logits, confidence = s.think(confidence=0.9, max_ticks=5)
    assert logits.shape == (3, VOCABULARY)
    assert confidence.tolist() == pytest.approx([0.9526] * 3, abs=1e-4)
    assert s.state.position.tolist() == [1, 1, 1]
    s.think(confidence=0.96, max_ticks=5)
    assert s.state.position.tolist() == [6, 6, 6]


def test_thinking_goes_on_until_all_are_confident(monkeypatch: pytest.MonkeyPatch) -> None:
    s = stream(rows=2)
    reached = iter([[0.99, 0.2], [0.1, 0.99], [0.9, 0.95], [1.0, 1.0]])

    def answer(vector: Tensor | None) -> tuple[Tensor, Tensor]:
        assert vector is None
        return torch.zeros(2, VOCABULARY), torch.tensor(next(reached))

    monkeypatch.setattr(s, "tick_vec", answer)
    assert s.think(confidence=0.9)[1].tolist() == pytest.approx([0.9, 0.95])
    assert next(reached) == [1.0, 1.0]


def test_thinking_changes_the_answer() -> None:
    s = confident(stream(), -9.0)
    first = s.tick(tokens(3, 1)[:, 0])[0]
    assert not torch.allclose(s.think(max_ticks=3)[0], first, atol=1e-2)


@pytest.mark.parametrize("max_ticks", [0, -1])
def test_thinking_no_ticks(max_ticks: int) -> None:
    with pytest.raises(ValueError, match=f"max_ticks = {max_ticks}: must be at least 1"):
        stream().think(max_ticks=max_ticks)


@both
def test_peeking_does_not_disturb(config: EngineConfig) -> None:
    s, ids = stream(config), tokens(3, 6)
    s.read(ids)
    before = s.state.clone()
    peeked = s.peek()
    assert_identical(peeked.state, before)
    peeked.read(tokens(3, 20, seed=1))
    peeked.think(max_ticks=2)
    peeked.reset()
    for tensor in tensors(s.peek().state).values():
        tensor.fill_(7)
    assert_identical(s.state, before)


@both
def test_reset_rows_begin_anew(config: EngineConfig) -> None:
    warm, cold = stream(config), stream(config)
    warm.read(tokens(3, 7))
    kept = warm.peek()
    warm.reset(rows=torch.tensor([False, True, False]))
    ids = tokens(3, 5, seed=1)
    answer, fresh, carried = (s.read(ids)[0] for s in (warm, cold, kept))
    assert_close(answer[1], fresh[1])
    assert_close(answer[[0, 2]], carried[[0, 2]])
    assert not torch.allclose(carried[1], fresh[1], atol=1e-3)
    warm.reset()
    assert_identical(warm.state, warm.engine.initial_state(3))


class Pairs(TiedEmbedding):
    """Two vectors for each observation, as a patch embedding has many for an image."""

    def embed(self, observations: Tensor) -> Tensor:
        return super().embed(observations).repeat_interleave(2, dim=1)


def test_a_tick_is_one_vector() -> None:
    config = tiny()
    s = Stream(awake(config), Pairs(VOCABULARY, config.d_model), batch_size=3)
    with pytest.raises(ValueError, match=r"2 vectors: a tick reads 1"):
        s.tick(tokens(3, 1)[:, 0])
    s.read(tokens(3, 1))
    assert s.state.position.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), "2 rows.*3 streams"),
        (torch.zeros(3, 1, dtype=torch.int64), r"\(3, 1, 1, 16\).*must be \(B, C, d_model\)"),
    ],
)
def test_observations_that_do_not_fit(observation: Tensor, message: str) -> None:
    s = stream()
    before = s.state
    with pytest.raises(ValueError, match=message):
        s.tick(observation)
    assert s.state is before


@pytest.mark.parametrize("arguments", [{}, {"batch_size": 2}])
def test_a_given_state_is_used(arguments: dict[str, Any]) -> None:
    s = stream(rows=2)
    s.read(tokens(2, 3))
    assert Stream(s.engine, s.frontend, state=s.state, **arguments).state is s.state
