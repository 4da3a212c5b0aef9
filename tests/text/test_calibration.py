"""Calibrated rows: each token is as likely as it is frequent, and its row is little changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fractus_core.api import Batch, ContinuousThoughtEngine, EngineConfig, Json
from fractus_text import calibration, logits
from fractus_text.calibration import calibrate
from fractus_text.embedding import TiedEmbedding

V, D, ROWS, CHUNK = 40, 32, 4, 16
FREQUENCY = 1.0 / torch.arange(1, V - 4)  # the last five never occur

torch.set_num_threads(1)


class Draws:
    """Independent tokens, some frequent and some not; or the token to predict is the one read."""

    fingerprint = ""
    rows = ROWS

    def __init__(self, *, repeat: bool = False) -> None:
        length = 400
        generator = torch.Generator().manual_seed(0)
        drawn = torch.multinomial(FREQUENCY, ROWS * CHUNK * length + 1, True, generator=generator)
        self.tokens, self.place, self.length, self.repeat = drawn, 0, length, repeat

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        begin = self.place % self.length * ROWS * CHUNK
        self.place += 1
        window = self.tokens[begin : begin + ROWS * CHUNK + 1]
        starts = torch.full((ROWS,), self.place == 1)
        targets = window[:-1] if self.repeat else window[1:]
        return Batch(window[:-1].view(ROWS, CHUNK), targets.view(ROWS, CHUNK), starts)

    def cursor(self) -> Json:
        return {"place": self.place}

    def seek(self, cursor: Json) -> None:
        self.place = cursor["place"]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "COUNTED", ROWS * CHUNK * 300)
    monkeypatch.setattr(calibration, "READ", 2000)


def make() -> tuple[ContinuousThoughtEngine, TiedEmbedding]:
    torch.manual_seed(0)
    engine = ContinuousThoughtEngine(EngineConfig(d_model=D, n_layers=1, n_heads=2, n_experts=2))
    mean = torch.randn(D)
    engine.final_norm.bias.data = mean  # of hidden vectors, as trained engines have one
    embedding = TiedEmbedding(V, D)
    rare_are_likely = torch.linspace(-3, 3, V)[:, None] * mean / mean.square().sum()
    embedding.weight.data = torch.randn(V, D) / 4 + rare_are_likely
    return engine.eval(), embedding


@torch.no_grad()
def answers(engine: ContinuousThoughtEngine, embedding: TiedEmbedding) -> tuple[Tensor, float]:
    """Mean probabilities and the loss, over batches that calibration did not read."""
    source, state = Draws(), engine.initial_state(ROWS)
    source.seek({"place": 300})
    means, losses = [], []
    for _ in range(60):
        batch = next(source)
        hidden, _, state = engine(embedding.embed(batch.observations), state)
        chances = embedding.answer(hidden).softmax(-1)
        means.append(chances.mean((0, 1)))
        losses.append(-chances.gather(-1, batch.targets.unsqueeze(-1)).log().mean())
    return torch.stack(means).mean(0), float(torch.stack(losses).mean())


def test_each_token_is_as_likely_as_it_is_frequent() -> None:
    engine, embedding = make()
    expected = torch.cat([FREQUENCY / FREQUENCY.sum(), torch.zeros(5)])
    before, loss = answers(engine, embedding)
    calibrate(engine, embedding, Draws())
    after, calibrated = answers(engine, embedding)
    assert (before - expected).abs().sum() > 0.5
    assert (after - expected).abs().sum() < 0.12
    assert after[-5:].max() < 0.001
    entropy = float(-(expected.clamp(min=1e-12).log() * expected).sum())
    assert calibrated < entropy + 0.15 < loss  # nothing predicts better than frequencies here


def test_rows_move_along_one_direction() -> None:
    engine, embedding = make()
    before = embedding.weight.detach().clone()
    scale = calibrate(engine, embedding, Draws())
    moved = embedding.weight.detach() - scale * before
    sizes = torch.linalg.svdvals(moved)
    assert sizes[0] > 0.5
    assert sizes[1] < 1e-5 * sizes[0]


@pytest.mark.parametrize(("repeat", "scale"), [(True, 1.0), (False, 0.25)])
def test_rows_shrink_if_their_answers_are_wrong(repeat: bool, scale: float) -> None:
    """A fresh engine's best guess is the token that it has just read."""
    engine, embedding = make()
    assert calibrate(engine, embedding, Draws(repeat=repeat)) == scale


def test_the_source_is_where_it_was_and_the_engine_as_it_was() -> None:
    engine, embedding = make()
    source, weights = Draws(), {k: v.clone() for k, v in engine.state_dict().items()}
    source.seek({"place": 7})
    calibrate(engine, embedding, source)
    assert source.cursor() == {"place": 7}
    assert all(torch.equal(v, weights[k]) for k, v in engine.state_dict().items())


def test_parts_of_the_logits_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for most in (logits.MOST, 33 * V):
        monkeypatch.setattr(logits, "MOST", most)
        engine, embedding = make()
        calibrate(engine, embedding, Draws())
        rows.append(embedding.weight.detach())
    torch.testing.assert_close(*rows, atol=1e-4, rtol=1e-4)
