"""The front-end `text`: its loss, its metric, and what rebuilds it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, Stream
from fractus_core.cli.main import main
from fractus_text import frontend as module
from fractus_text.embedding import CE_CHUNK, TiedEmbedding
from fractus_text.encoding import encode_text
from fractus_text.frontend import TextFrontend
from fractus_text.tokenizers import load

torch.set_num_threads(1)

OPTIONS = {"tokenizer": "bytes", "column": "text", "validation": 0.1, "on_invalid": "replace"}
TEXT = "Zürich → 3.14,\n\tthe <|endoftext|> of «naïve» 🦊 foxes… def f(x): return x\r\n"


def make(tmp_path: Path, tokenizer: str, d_model: int = 16) -> TextFrontend:
    (tmp_path / "corpus.txt").write_text(TEXT, newline="")
    options = OPTIONS | {"tokenizer": tokenizer}
    schema = TextFrontend.infer_schema(str(tmp_path / "corpus.txt"), options)
    torch.manual_seed(0)
    return TextFrontend(d_model, options, json.loads(json.dumps(schema)))


# ------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, CE_CHUNK // 2), (5, 2 * CE_CHUNK // 3)])
@pytest.mark.parametrize("last", [False, True])
def test_the_loss_is_cross_entropy_with_its_gradients(shape: tuple[int, int], last: bool) -> None:
    torch.manual_seed(0)
    embedding = TiedEmbedding(300, 24).double()
    torch.nn.init.normal_(embedding.weight, std=0.7)
    hidden = torch.randn(*shape, 24, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(300, shape)
    score = embedding.score(hidden, targets, last=last)
    (3 * score.loss).backward()
    found = [hidden.grad, embedding.weight.grad]

    hidden.grad = embedding.weight.grad = None
    logits = hidden @ embedding.weight.T
    picked, wanted = (logits[:, -1:], targets[:, -1:]) if last else (logits, targets)
    expected = F.cross_entropy(picked.flatten(0, 1), wanted.flatten())
    (3 * expected).backward()

    torch.testing.assert_close(score.loss, expected)
    for one, other in zip(found, [hidden.grad, embedding.weight.grad], strict=True):
        assert one is not None
        torch.testing.assert_close(one, other)
    assert score.weight == wanted.numel()
    assert torch.equal(score.correct, logits[:, -1].argmax(-1) == targets[:, -1])


def test_correct_tells_right_from_wrong() -> None:
    embedding = TiedEmbedding(5, 5)
    with torch.no_grad():
        embedding.weight.copy_(torch.eye(5))
    hidden = torch.eye(5)[torch.tensor([[0, 1], [2, 3], [4, 4]])] * 9
    score = embedding.score(hidden, torch.tensor([[1, 1], [2, 0], [0, 4]]))
    assert score.correct.tolist() == [True, False, True]


def test_the_loss_under_autocast() -> None:
    torch.manual_seed(0)
    embedding = TiedEmbedding(300, 24)
    hidden, targets = torch.randn(4, 90, 24), torch.randint(300, (4, 90))
    exact = embedding.score(hidden, targets).loss.item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = embedding.score(hidden, targets).loss
    rough.backward()
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact, rel=1e-2)
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.isfinite().all()


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "fractus-8k"])
def test_untrained_it_knows_nothing(tmp_path: Path, tokenizer: str) -> None:
    frontend = make(tmp_path, tokenizer, d_model=64)
    vocabulary = frontend.encoding.n_vocab
    assert frontend.uniform_loss == pytest.approx(math.log(vocabulary))
    engine = ContinuousThoughtEngine(EngineConfig(d_model=64, n_layers=1))
    tokens = torch.randint(vocabulary, (4, 33))
    hidden, _, _ = engine.tick_chunk_train(frontend.embed(tokens[:, :-1]), engine.initial_state(4))
    score = frontend.score(hidden, tokens[:, 1:])
    assert score.loss.item() == pytest.approx(math.log(vocabulary), rel=0.05)


# ------------------------------------------------------------------------------------ bits per byte


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "fractus-8k"])
@pytest.mark.parametrize("last", [False, True])
def test_bits_per_byte(tmp_path: Path, tokenizer: str, last: bool) -> None:
    """All bits that the targets cost, over the bytes that they stand for; an end has none."""
    frontend = make(tmp_path, tokenizer).eval()
    encoded = encode_text(frontend.encoding, TEXT).astype("int64")
    targets = torch.from_numpy(encoded)[:20].reshape(2, 10).clone()
    targets[1, 4] = targets[0, 9] = frontend.encoding.eot_token
    hidden = torch.randn(2, 10, 16)
    with torch.no_grad():
        score = frontend.score(hidden, targets, last=last)
    [(bits, size)] = score.metrics.values()

    expected_bits, expected_size = 0.0, 0
    for row in range(2):
        for place in range(9 if last else 0, 10):
            token = int(targets[row, place])
            logits = (frontend.weight.detach() @ hidden[row, place]).tolist()
            expected_bits -= math.log2(math.exp(logits[token]) / sum(map(math.exp, logits)))
            if token != frontend.encoding.eot_token:
                expected_size += len(frontend.encoding.decode_single_token_bytes(token))
    assert bits == pytest.approx(expected_bits, rel=1e-4)
    assert size == expected_size
    assert list(score.metrics) == ["bits_per_byte"]
    frontend.train()
    assert frontend.score(hidden, targets).metrics == {}


# ------------------------------------------------------------------------------- tokens and vectors


def test_embedding_and_answer_are_one_matrix(tmp_path: Path) -> None:
    frontend = make(tmp_path, "bytes")
    assert [name for name, _ in frontend.named_parameters()] == ["weight"]
    assert list(frontend.state_dict()) == ["weight"]
    tokens = torch.tensor([[3, 250], [256, 0]])
    vectors = frontend.embed(tokens)
    assert vectors.shape == (2, 2, 16)
    assert torch.equal(vectors[1, 0], frontend.weight[256])
    torch.testing.assert_close(frontend.answer(vectors)[0, 1], frontend.weight @ vectors[0, 1])


def ids(encoding: Any, text: str) -> list[int]:
    return list(encode_text(encoding, text))


@pytest.mark.parametrize("tokenizer", ["bytes", "chars", "fractus-8k"])
def test_a_schema_rebuilds_the_tokenizer(tmp_path: Path, tokenizer: str) -> None:
    frontend = make(tmp_path, tokenizer)
    expected = ids(load(tokenizer, [TEXT]), TEXT)
    assert ids(frontend.encoding, TEXT) == expected
    assert frontend.encoding.decode(expected) == TEXT
    schema = json.loads(json.dumps(TextFrontend.infer_schema(str(tmp_path), frontend.options)))
    (tmp_path / "corpus.txt").unlink()  # the data is not needed
    again = TextFrontend(16, frontend.options, schema)
    assert ids(again.encoding, TEXT) == expected
    assert again.encoding.eot_token == frontend.encoding.eot_token
    assert torch.equal(again.token_bytes, frontend.token_bytes)


def test_a_schema_rebuilds_gpt2(tmp_path: Path, tiktoken_cache: None) -> None:
    frontend = make(tmp_path, "gpt2", d_model=2)
    assert frontend.encoding.n_vocab == 50257
    assert ids(frontend.encoding, "Hello world") == [15496, 995]


def test_a_schema_rebuilds_a_tokenizer_of_a_file_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the cat and the dog and the hat\n" * 50)
    file = tmp_path / "mine.tiktoken"
    args = ["tokenizer", "train", str(tmp_path / "words.txt"), "-o", str(file), "--vocab", "270"]
    assert main(args) == 0
    frontend = make(tmp_path, str(file))
    expected = ids(load(str(file)), TEXT)
    schema = TextFrontend.infer_schema(str(tmp_path), frontend.options)
    file.unlink()
    again = TextFrontend(16, frontend.options, json.loads(json.dumps(schema)))
    assert ids(again.encoding, TEXT) == expected
    assert len(ids(again.encoding, "the the")) < 7


# --------------------------------------------------------------------------------------- illustrate


def test_a_sample_is_text_and_the_same_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE_TOKENS", 20)
    frontend = make(tmp_path, "chars")
    engine = ContinuousThoughtEngine(EngineConfig(d_model=16, n_layers=1))

    def sample(seed: int) -> str:
        return frontend.illustrate(Stream(engine, frontend), None, tmp_path / "pictures", seed)  # type: ignore[arg-type]

    assert sample(0) == sample(0) != sample(1)
    assert 1 <= len(sample(0)) <= 20
    assert set(sample(0)) <= set(TEXT)
    assert not (tmp_path / "pictures").exists()


def test_a_sample_of_characters_that_know_no_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAMPLE_TOKENS", 5)
    (tmp_path / "corpus.txt").write_text("one line")
    options = OPTIONS | {"tokenizer": "chars"}
    schema = TextFrontend.infer_schema(str(tmp_path), options)
    frontend = TextFrontend(16, options, schema)
    engine = ContinuousThoughtEngine(EngineConfig(d_model=16, n_layers=1))
    sample = frontend.illustrate(Stream(engine, frontend), None, tmp_path, 0)  # type: ignore[arg-type]
    assert set(sample) <= set("one line")


@pytest.mark.parametrize("split", ["train", "validation", "all"])
def test_opening_gives_next_tokens(tmp_path: Path, split: Any) -> None:
    frontend = make(tmp_path, "bytes")
    (tmp_path / "corpus.txt").write_text("0123456789" * 200)
    source = frontend.open(str(tmp_path / "corpus.txt"), split, batch_size=2, chunk_len=8, seed=0)
    batch = next(source)
    digits: Tensor = batch.observations - ord("0")
    assert batch.observations.shape == batch.targets.shape == (2, 8)
    assert torch.equal(batch.targets - ord("0"), (digits + 1) % 10)
