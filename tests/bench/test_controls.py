"""The controls are fair opponents: they learn, and are scored on every token."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from fractus_bench.controls import gpt, training
from fractus_bench.controls.cnn import CNN
from fractus_bench.controls.training import learning_rate, of_equal_size, size, train
from fractus_bench.controls.vit import HEADS, ViT


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes a hundredth of a second further whenever it is read."""
    times = (0.01 * tick for tick in itertools.count())
    monkeypatch.setattr(training.time, "perf_counter", lambda: next(times))


def test_gpt_learns() -> None:
    tokens = torch.arange(3000) * 7 % 11
    torch.manual_seed(0)
    model = gpt.GPT(11, n_layers=1, d_model=32)
    before = gpt.evaluate(model, tokens, stride=gpt.BLOCK)
    assert before == pytest.approx(math.log(11), rel=0.05)
    batches = gpt.random_windows(tokens, seed=0)
    assert train(model, batches, gpt.loss, seconds=1.0, lr=1e-2, schedule="wsd") == 99
    assert gpt.evaluate(model, tokens, stride=gpt.BLOCK) < 0.5 * before


def test_gpt_does_not_look_ahead() -> None:
    model = gpt.GPT(11, n_layers=2, d_model=32)
    tokens = torch.randint(11, (1, 20))
    other = tokens.clone()
    other[0, 10] = (other[0, 10] + 1) % 11
    changed = (model(tokens) != model(other)).any(-1)[0]
    assert not changed[:10].any()
    assert changed[10:].all()


@pytest.mark.parametrize("stride", [gpt.BLOCK, gpt.BLOCK // 2, 24, 1])
@pytest.mark.parametrize("length", [65, 130, 200, 257])
def test_evaluation_scores_each_token_once(stride: int, length: int) -> None:
    """Against a model whose loss on a token is known, whatever the windows."""
    tokens = torch.randint(11, (length,), generator=torch.Generator().manual_seed(0))

    def model(inputs: torch.Tensor) -> torch.Tensor:
        return F.one_hot(inputs, 11).double()  # likes to repeat the last token

    again = (tokens[1:] == tokens[:-1]).double()
    expected = math.log(math.e + 10) - again.mean()
    assert gpt.evaluate(model, tokens, stride=stride) == pytest.approx(float(expected))


@pytest.mark.parametrize("make", [lambda: ViT(2, d_model=32), lambda: CNN(2, width=8)])
def test_image_controls_learn(make) -> None:
    """Which half is brighter."""
    draw = torch.Generator().manual_seed(0)

    def batches():
        while True:
            labels = torch.randint(2, (16,), generator=draw)
            images = torch.randint(100, (16, 3, 32, 32), generator=draw, dtype=torch.uint8)
            images[labels == 0, :, :16] += 60
            images[labels == 1, :, 16:] += 60
            yield images, labels

    torch.manual_seed(0)
    model = make()
    train(model, batches(), F.cross_entropy, seconds=0.6, lr=1e-2, schedule="cosine")
    images, labels = next(batches())
    with torch.no_grad():
        loss = F.cross_entropy(model(images), labels)
    assert float(loss) < 0.3


def test_sizes_are_matched() -> None:
    for make, step in ((lambda w: ViT(10, d_model=w), HEADS), (lambda w: CNN(10, width=w), 2)):
        model = of_equal_size(make, range(8, 200, step), 500_000)
        assert size(model) == pytest.approx(500_000, rel=0.06)


def test_schedules() -> None:
    for schedule, last in (("cosine", 0.1), ("wsd", 0.05)):
        assert learning_rate(schedule, 0, 0.0) < 0.02
        assert learning_rate(schedule, 1000, 0.01) == pytest.approx(1.0, abs=0.01)
        assert learning_rate(schedule, 1000, 1.0) == pytest.approx(last)
