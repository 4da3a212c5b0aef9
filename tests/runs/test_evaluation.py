"""Evaluations against loops that read one stream after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from running import contents, metrics, start
from torch import Tensor, nn

from fractus_core.cli.main import main
from fractus_core.contract import Batch, Score, Source
from fractus_core.engine import ContinuousThoughtEngine, EngineConfig
from fractus_core.runs.evaluation import CHUNK, COLD_LENGTH, evaluate
from fractus_text.frontend import TextFrontend

SMALL = EngineConfig(d_model=16, n_layers=1, d_ff=16, expert_rank=8, thought_stride=50)
OPTIONS = {"tokenizer": "chars", "column": "text", "validation": 0.5, "on_invalid": "replace"}
LETTERS = "aeé→🦊 n"
ROWS = 6


def make_engine(config: EngineConfig = SMALL) -> ContinuousThoughtEngine:
    """With weights so large that what came long ago still matters."""
    torch.manual_seed(0)
    engine = ContinuousThoughtEngine(config)
    with torch.no_grad():
        for parameter in engine.parameters():
            parameter.normal_(std=0.5)
    return engine


def make_text(folder: Path, lengths: list[int]) -> tuple[TextFrontend, Callable[[], Source]]:
    """A front-end, and a function that opens a pass over documents of these lengths."""
    draw = torch.Generator().manual_seed(1)
    for number, length in enumerate(lengths):
        letters = torch.randint(len(LETTERS), (length,), generator=draw)
        (folder / f"{number:03}.txt").write_text("".join(LETTERS[i] for i in letters))
    schema = TextFrontend.infer_schema(str(folder), OPTIONS)
    frontend = TextFrontend(SMALL.d_model, OPTIONS, schema)
    nn.init.normal_(frontend.weight, std=1.0)

    def open_all() -> Source:
        return frontend.open(str(folder), "all", batch_size=ROWS, chunk_len=CHUNK, seed=0)

    return frontend, open_all


def read_row(
    engine: ContinuousThoughtEngine, tokens: Tensor, starts: list[int], frontend: TextFrontend
) -> Tensor:
    """Hidden vectors (n, d) of one stream (n,) that begins anew at `starts`; from one to the next
    in one call."""
    hidden = []
    with torch.no_grad():
        for begin, end in itertools.pairwise([*sorted({0, *starts}), len(tokens)]):
            vectors = frontend.weight[tokens[begin:end]].unsqueeze(0)
            hidden.append(engine.tick_chunk_train(vectors, engine.initial_state(1))[0][0])
    return torch.cat(hidden)


def by_hand(
    engine: ContinuousThoughtEngine,
    frontend: TextFrontend,
    batches: list[Batch],
    cold_length: int | None,
) -> tuple[float, float]:
    """The mean loss and the bits per byte of all rows."""
    observations = torch.cat([batch.observations for batch in batches], dim=1)
    targets = torch.cat([batch.targets for batch in batches], dim=1)
    nats, size = 0.0, 0
    for row in range(len(observations)):
        starts = [i * CHUNK for i, batch in enumerate(batches) if batch.starts[row]]
        if cold_length is not None:
            starts += range(0, observations.shape[1], cold_length)
        hidden = read_row(engine, observations[row], starts, frontend)
        logits = hidden.double() @ frontend.weight.detach().double().T
        nats += float(F.cross_entropy(logits, targets[row], reduction="sum"))
        for token in targets[row].tolist():
            if token != frontend.encoding.eot_token:
                size += len(frontend.encoding.decode_single_token_bytes(token))
    return nats / targets.numel(), nats / math.log(2) / size


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([ROWS * 1300], ROWS),  # no documents begin within: reset by age alone
        ([900, 3000, 40, 2500, 1300], ROWS),
        ([700], 5),  # too short for so many rows
    ],
)
def test_warm_and_cold(tmp_path: Path, lengths: list[int], rows: int) -> None:
    engine = make_engine()
    frontend, open_all = make_text(tmp_path, lengths)
    batches = list(open_all())
    assert len(batches[0].starts) == rows
    found = evaluate(engine, frontend, open_all)
    warm, bits = by_hand(engine, frontend, batches, None)
    cold, _ = by_hand(engine, frontend, batches, COLD_LENGTH)
    assert found["loss_warm"] == pytest.approx(warm, rel=1e-4)
    assert found["loss_cold"] == pytest.approx(cold, rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(bits, rel=1e-4)
    assert found["loss_uniform"] == pytest.approx(math.log(len(LETTERS) + 1))
    assert found["tokens"] == rows * CHUNK * len(batches)
    if rows * 1024 < sum(lengths):
        assert abs(cold - warm) > 1e-3 * warm  # or else nothing is told apart
    else:
        assert found["loss_cold"] == found["loss_warm"]


def test_cold_streams_are_read_for_1024_vectors() -> None:
    assert COLD_LENGTH == 1024


def test_the_routing_is_that_of_the_warm_pass(tmp_path: Path) -> None:
    engine = make_engine()
    frontend, open_all = make_text(tmp_path, [ROWS * 1300])
    found = evaluate(engine, frontend, open_all)
    blocks = found["routing"]["blocks"]
    assert [sum(block["hits"]) for block in blocks] == [SMALL.top_k * found["tokens"]]


@pytest.mark.parametrize(
    ("limit", "read"), [(1, 1), (ROWS * CHUNK, 1), (ROWS * CHUNK + 1, 2), (10**9, 4)]
)
def test_a_limit_ends_with_the_chunk_that_reaches_it(tmp_path: Path, limit: int, read: int) -> None:
    engine = make_engine()
    frontend, open_all = make_text(tmp_path, [ROWS * CHUNK * 4 + 1])
    advanced: list[int] = []
    found = evaluate(engine, frontend, open_all, limit=limit, advance=advanced.append)
    batches = list(open_all())[:read]
    assert found["tokens"] == read * ROWS * CHUNK
    assert found["loss_warm"] == pytest.approx(
        by_hand(engine, frontend, batches, None)[0], rel=1e-4
    )
    passes = 1 if read == 1 else 2
    assert advanced == [ROWS * CHUNK] * read * passes


# ------------------------------------------------------------------- a front-end that keeps a diary


class Scripted(nn.Module):
    """Says of each chunk what it is told to, and keeps the hidden vectors."""

    uniform_loss = 1.0

    def __init__(self, scores: list[tuple[float, int, dict[str, tuple[float, float]]]]) -> None:
        super().__init__()
        self.scores, self.calls = scores, 0
        self.hidden: list[Tensor] = []
        self.modes: list[bool] = []

    def embed(self, observations: Tensor) -> Tensor:
        return observations

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        assert not last
        assert not hidden.requires_grad
        loss, weight, figures = self.scores[self.calls % len(self.scores)]
        self.calls += 1
        self.hidden.append(hidden)
        self.modes.append(self.training)
        return Score(torch.tensor(loss), weight, torch.ones(len(hidden)).bool(), figures)


def chunks(*rows: int, starts: float = 0.0, length: int = 3) -> Iterator[Batch]:
    """A pass of chunks with so many rows, of which the first `starts` begin anew."""
    draw = torch.Generator().manual_seed(2)
    for i, B in enumerate(rows):
        anew = torch.tensor([i == 0 or b < starts * B for b in range(B)])
        vectors = torch.randn(B, length, SMALL.d_model, generator=draw)
        yield Batch(vectors, torch.zeros(B, length), anew)


def figures(frontend: Scripted, source: Callable[[], Iterator[Batch]], **given: Any) -> Any:
    return evaluate(make_engine(), frontend, source, **given)  # type: ignore[arg-type]


def test_means_are_weighted() -> None:
    frontend = Scripted(
        [
            (2.0, 10, {"accuracy": (3.0, 4.0), "rare": (1.0, 2.0)}),
            (5.0, 30, {"accuracy": (1.0, 16.0)}),
            (1.0, 60, {"accuracy": (0.0, 5.0), "rare": (5.0, 1.0)}),
        ]
    )
    found = figures(frontend, lambda: chunks(2, 2, 2))
    mean = (2.0 * 10 + 5.0 * 30 + 1.0 * 60) / 100
    assert found["loss_warm"] == found["loss_cold"] == pytest.approx(mean)
    assert found["accuracy"] == pytest.approx(4 / 25)
    assert found["rare"] == pytest.approx(2.0)
    assert frontend.calls == 6
    assert list(found) == [
        *("loss_warm", "loss_cold", "loss_uniform"),
        *("accuracy", "rare"),
        *("tokens", "routing"),
    ]


def test_where_every_chunk_starts_anew_one_pass_is_enough() -> None:
    frontend = Scripted([(2.0, 1, {}), (3.0, 1, {})])
    found = figures(frontend, lambda: chunks(4, 4, starts=1.0))
    assert frontend.calls == 2
    assert found["loss_warm"] == found["loss_cold"] == 2.5
    frontend = Scripted([(2.0, 1, {}), (3.0, 1, {})])
    figures(frontend, lambda: chunks(4, 4, starts=0.75))
    assert frontend.calls == 4


def test_rows_that_start_anew_forget() -> None:
    frontend = Scripted([(0.0, 1, {})])
    engine = make_engine()
    figures(frontend, lambda: chunks(4, 4, starts=0.5))
    second = list(chunks(4, 4))[1].observations
    alone = engine.tick_chunk(second, engine.initial_state(4))[0]
    torch.testing.assert_close(frontend.hidden[1][:2], alone[:2])
    assert (frontend.hidden[1][2:] - alone[2:]).abs().max() > 0.01


def test_the_last_batch_may_have_fewer_rows() -> None:
    frontend = Scripted([(2.0, 12, {}), (8.0, 3, {})])
    found = figures(frontend, lambda: chunks(4, 1, starts=1.0))
    assert found["loss_warm"] == pytest.approx((24 + 24) / 15)
    assert found["tokens"] == 15
    assert len(frontend.hidden[1]) == 1


def test_modes_are_put_back_and_nothing_is_trained() -> None:
    engine = make_engine()
    before = {name: tensor.clone() for name, tensor in engine.state_dict().items()}
    frontend = Scripted([(2.0, 1, {})])
    for training in (True, False):
        engine.train(training)
        frontend.train(training)
        evaluate(engine, frontend, lambda: chunks(2, 2))  # type: ignore[arg-type, return-value]
        assert engine.training == frontend.training == training
        assert all(module.training == training for module in engine.modules())
    assert not any(frontend.modes)
    assert all(torch.equal(tensor, before[n]) for n, tensor in engine.state_dict().items())
    assert all(parameter.grad is None for parameter in engine.parameters())


# -------------------------------------------------------------------------------------- in a run


@pytest.mark.parametrize("tokens", ["1", "2048"])
def test_held_out_data_of_a_single_chunk(tmp_path: Path, corpus: Path, tokens: str) -> None:
    """Where every chunk that is read starts anew, warm streams are cold."""
    out = tmp_path / "run"
    options = ("--steps", "2", "--eval-every", "1", "--eval-tokens", tokens)
    assert main(start(corpus, out, *options)) == 0
    found = [line["evaluation"] for line in metrics(out) if line["kind"] == "eval"]
    assert len(found) == 3
    assert all(one["loss_warm"] == one["loss_cold"] for one in found)


def test_evaluating_does_not_change_the_training(tmp_path: Path, corpus: Path) -> None:
    """How often it is done changes no weight, no generator and no stream."""
    found = []
    for name, every in (("often", "1"), ("never", "1000")):
        out = tmp_path / name
        assert main(start(corpus, out, "--steps", "5", "--eval-every", every)) == 0
        found.append(contents(out / "checkpoints" / str(5 * 64)))
        assert sum(line["kind"] == "eval" for line in metrics(out)) == (6 if every == "1" else 1)
    for one in found:
        del one["checkpoint.json"]  # has the time in it
    assert found[0] == found[1]
