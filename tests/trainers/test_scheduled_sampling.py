"""Practising on the model's own answers."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import VOCABULARY, Counting, Table, lane, make, options

from fractus_core.api import EngineConfig, FractusError, Lane, Resampler
from fractus_text.embedding import TiedEmbedding
from fractus_trainers.cpu import CpuTrainer

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "warmup_steps": 0, "weight_decay": 0.0}
CONFIG = EngineConfig(d_model=32, n_layers=1, d_ff=32, expert_rank=8)


class Replacing(Table):
    """Every observation but the first of a row is replaced by token 7."""

    def resample(self, observations: Tensor, hidden: Tensor, **rest: Any) -> Tensor:
        self.asked = (hidden, rest)
        mixed = observations.clone()
        mixed[:, 1:] = 7
        return mixed


def prepared(frontend: Any = None, **given: Any) -> tuple[CpuTrainer, Lane, Any]:
    engine, _ = make(CONFIG)
    frontend = frontend or Replacing(CONFIG.d_model)
    trainer = CpuTrainer(options(**given), seed=0)
    made = lane(engine, frontend, Counting(3, 6))
    trainer.prepare(engine, [made])
    return trainer, made, engine


def test_both_passes_begin_in_one_state_and_make_one_step() -> None:
    """Against two losses put together by hand."""
    torch.manual_seed(1)
    frontend = Replacing(CONFIG.d_model)
    given = SGD | {"ss_rate": 1.0, "ss_weight": 0.3, "clip": 0.0, "reset_probability": 0.0}
    trainer, made, engine = prepared(frontend, **given)
    other, table = copy.deepcopy((engine, frontend))
    steps = trainer.train(lambda: 0.0)
    [first, step] = itertools.islice(steps, 2)
    assert {"loss", "ss_loss"} <= {"loss", *step.figures}

    batches = Counting(3, 6)
    state = other.initial_state(3)
    learning = torch.optim.SGD([*other.parameters(), *table.parameters()], lr=0.1, momentum=0.9)
    for told in (first, step):
        batch = next(batches)
        state, losses, total = state.reset(rows=batch.starts), [], 0.0
        begun = state
        for observations in (batch.observations, table.resample(batch.observations, state.thought)):
            hidden, lb, after = other.tick_chunk_train(table.embed(observations), begun)
            score = table.score(hidden, batch.targets)
            doubt = torch.nn.functional.binary_cross_entropy_with_logits(
                other.confidence_logit(hidden[:, -1].detach()), score.correct.float()
            )
            weight = 0.3 if losses else 1.0
            total = total + weight * (score.loss + 0.02 * lb + 0.1 * doubt)
            if not losses:
                state = after.detach()
            losses.append(score.loss.item())
        learning.zero_grad()
        total.backward()  # type: ignore[attr-defined]
        learning.step()
        assert told.loss == pytest.approx(losses[0], abs=1e-5)
        assert told.figures["ss_loss"] == pytest.approx(losses[1], abs=1e-5)
        assert told.tokens == 18
    for p, q in zip(engine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=1e-4)
    # The state that goes on is that of what was really there.
    torch.testing.assert_close(made.state.thought, state.thought, atol=1e-4, rtol=1e-3)
    assert torch.equal(made.state.position, state.position)


def test_so_many_steps_practise() -> None:
    trainer, _, _ = prepared(ss_rate=0.25)
    steps = list(itertools.islice(trainer.train(lambda: 0.0), 200))
    assert 30 < sum("ss_loss" in step.figures for step in steps) < 70


def test_without_it_no_number_is_drawn() -> None:
    """So that runs that were begun before it was there go on as they were."""
    trainer, _, _ = prepared(ss_rate=0.0, reset_probability=0.0)
    generator = torch.Generator().manual_seed(0)
    next(trainer.train(lambda: 0.0))
    torch.rand(3, generator=generator)  # the random rows
    assert torch.equal(trainer.generator.get_state(), generator.get_state())


def test_a_front_end_that_reads_no_answers_is_refused() -> None:
    with pytest.raises(FractusError, match=r"ss_rate 0.5: .*'toy'"):
        prepared(Table(CONFIG.d_model), ss_rate=0.5)


# ----------------------------------------------------------------------------- text's own answers


def resampled(head: TiedEmbedding, observations: Tensor, hidden: Tensor, **given: Any) -> Tensor:
    wanted = {"probability": 1.0, "temperature": 1.0} | given
    generator = torch.Generator().manual_seed(0)
    return head.resample(observations, hidden, generator=generator, **wanted)


def test_text_answers_with_what_it_holds_likely() -> None:
    """Frequencies of samples are the softmax of logits over temperature."""
    torch.manual_seed(0)
    head = TiedEmbedding(VOCABULARY, 16)
    assert isinstance(head, Resampler)
    hidden = 20 * torch.randn(1, 1, 16).expand(50, 401, 16)
    for temperature in (0.5, 1.0, 2.0):
        zeros = torch.zeros(50, 401, dtype=torch.int64)
        mixed = resampled(head, zeros, hidden, temperature=temperature)
        assert (mixed[:, 0] == 0).all()
        counts = torch.bincount(mixed[:, 1:].flatten(), minlength=VOCABULARY) / (50 * 400)
        expected = torch.softmax(head.answer(hidden[0, 0]) / temperature, -1)
        torch.testing.assert_close(counts, expected.detach(), atol=0.015, rtol=0)


def test_each_is_replaced_by_the_answer_before_it() -> None:
    head = TiedEmbedding(VOCABULARY, VOCABULARY)
    with torch.no_grad():
        head.weight.copy_(100 * torch.eye(VOCABULARY))
    tokens = torch.randint(VOCABULARY, (4, 9))
    hidden = torch.nn.functional.one_hot(tokens, VOCABULARY).float()
    observations = torch.zeros(4, 9, dtype=torch.int64)
    mixed = resampled(head, observations, hidden)
    assert torch.equal(mixed[:, 1:], tokens[:, :-1])
    assert torch.equal(observations, torch.zeros(4, 9, dtype=torch.int64))


def test_some_are_replaced_and_at_the_first_none() -> None:
    head = TiedEmbedding(VOCABULARY, 16)
    observations = torch.full((100, 50), VOCABULARY)  # which it never answers
    mixed = resampled(head, observations, torch.randn(100, 50, 16), probability=0.2)
    assert (mixed[:, 0] == VOCABULARY).all()
    assert (mixed[:, 1:] < VOCABULARY).float().mean() == pytest.approx(0.2, abs=0.02)
    assert torch.equal(
        resampled(head, observations, torch.randn(100, 50, 16), probability=0.0), observations
    )


def test_nothing_to_replace_in_single_tokens() -> None:
    head = TiedEmbedding(VOCABULARY, 16)
    tokens = torch.arange(3).unsqueeze(1)
    assert torch.equal(resampled(head, tokens, torch.randn(3, 1, 16)), tokens)
