"""Images reach the engine and come back as answers, whole or patch by patch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from image_files import SIZE, options
from torch import Tensor

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, FractusError, Stream
from fractus_vision.frontend import VisionFrontend, look, running_answers
from fractus_vision.scan import scan_order

NAMES = [f"class {i}" for i in range(10)]
D = 32


def made(**changed: Any) -> VisionFrontend:
    torch.manual_seed(0)
    return VisionFrontend(D, options(**changed), {"classes": NAMES}).eval()


def engine(**fields: Any) -> ContinuousThoughtEngine:
    torch.manual_seed(1)
    sizes = {"d_model": D, "n_heads": 2, "n_layers": 2, "n_experts": 4, "d_ff": 32}
    return ContinuousThoughtEngine(EngineConfig(**sizes | fields)).eval()


def images(count: int, frontend: VisionFrontend) -> Tensor:
    draw = torch.Generator().manual_seed(2)
    shape = (count, frontend.channels, frontend.size, frontend.size)
    return torch.randint(256, shape, dtype=torch.uint8, generator=draw)


def hidden(frontend: VisionFrontend, core: ContinuousThoughtEngine, seen: Tensor) -> Tensor:
    made, _, _ = core.tick_chunk_train(frontend.embed(seen), core.initial_state(len(seen)))
    return made


@pytest.mark.parametrize(
    ("how", "vectors"),
    [
        ({}, 16),
        ({"size": 32}, 16),
        ({"size": 17}, 16),
        ({"size": 28, "colour": False}, 16),
        ({"size": 64}, 16),
        ({"stem": "patch"}, 16),
        ({"stem": "patch", "size": 28, "patch_size": 7, "colour": False}, 16),
        ({"stem": "patch", "size": 32, "patch_size": 4}, 64),
    ],
)
def test_images_become_vectors(how: dict[str, Any], vectors: int) -> None:
    frontend = made(**how)
    assert frontend.embed(images(3, frontend)).shape == (3, vectors, D)


def test_patches_that_do_not_fill_the_image() -> None:
    with pytest.raises(FractusError, match="size 16 is no multiple of patch_size 5"):
        made(stem="patch", patch_size=5)


@pytest.mark.parametrize("order", ["snake", "hilbert", "centre-out"])
@pytest.mark.parametrize("stem", ["conv", "patch"])
def test_a_scan_only_changes_the_order(order: str, stem: str) -> None:
    plain, scanned = made(stem=stem), made(stem=stem, scan=order)
    seen = images(3, plain)
    assert torch.equal(scanned.embed(seen), plain.embed(seen)[:, scan_order(order, 4)])


def test_a_vector_is_about_its_patch() -> None:
    frontend = made(stem="patch")
    seen = images(1, frontend)
    changed = seen.clone()
    changed[0, :, 4:8, 8:12] ^= 255  # row 1, column 2
    differs = (frontend.embed(seen) != frontend.embed(changed)).any(-1)[0]
    assert differs.nonzero().flatten().tolist() == [1 * 4 + 2]


@pytest.mark.parametrize(
    "seen",
    [
        torch.zeros(2, 3, SIZE, SIZE),
        torch.zeros(2, 1, SIZE, SIZE, dtype=torch.uint8),
        torch.zeros(2, 3, SIZE, SIZE + 1, dtype=torch.uint8),
        torch.zeros(2, SIZE, SIZE, 3, dtype=torch.uint8),
        torch.zeros(2, 1, 3, SIZE, SIZE, dtype=torch.uint8),
    ],
)
def test_what_is_no_batch_of_images(seen: Tensor) -> None:
    with pytest.raises(ValueError, match=r"must be \(B, 3, 16, 16\) torch.uint8") as caught:
        made().embed(seen)
    assert str(tuple(seen.shape)) in str(caught.value)


@pytest.mark.parametrize("stem", ["conv", "patch"])
@pytest.mark.parametrize("answer", ["pooled", "every"])
def test_an_untrained_model_knows_nothing(stem: str, answer: str) -> None:
    frontend, core = made(stem=stem, answer=answer).train(), engine().train()
    seen = images(64, frontend)
    score = frontend.score(hidden(frontend, core, seen), torch.arange(64) % 10)
    assert frontend.uniform_loss == pytest.approx(math.log(10))
    assert score.loss.item() == pytest.approx(frontend.uniform_loss, rel=0.05)


def test_running_answers_are_means_so_far() -> None:
    logits = torch.randn(3, 7, 5)
    found = running_answers(logits)
    for t in range(7):
        torch.testing.assert_close(found[:, t], logits[:, : t + 1].mean(1))


def test_the_last_running_answer_is_the_pooled_one() -> None:
    frontend, core = made(), engine()
    h = hidden(frontend, core, images(4, frontend))
    pooled = frontend.answer(h.mean(1))
    torch.testing.assert_close(running_answers(frontend.answer(h))[:, -1], pooled)
    score = frontend.score(h, pooled.argmax(-1))
    assert score.correct.all()
    assert score.metrics["accuracy"] == (4, 4)
    torch.testing.assert_close(score.loss, F.cross_entropy(pooled, pooled.argmax(-1)))


def test_answering_after_every_patch() -> None:
    """The loss is the mean over all answers; right or wrong is the last."""
    h, targets = torch.randn(5, 16, D), torch.arange(5)
    frontend = made(answer="every")
    means = [frontend.answer(h[:, : t + 1].mean(1)) for t in range(16)]
    losses = [F.cross_entropy(answer, targets) for answer in means]
    score = frontend.score(h, targets)
    torch.testing.assert_close(score.loss, torch.stack(losses).mean())
    assert torch.equal(score.correct, means[-1].argmax(-1) == targets)
    last = frontend.score(h, targets, last=True)
    torch.testing.assert_close(last.loss, losses[-1])
    torch.testing.assert_close(made().score(h, targets).loss, losses[-1])


@pytest.mark.parametrize("scan", ["raster", "hilbert"])
def test_the_answer_forms_tick_by_tick(scan: str) -> None:
    """The eye that moves vector by vector sees what the eye sees that reads the image at once."""
    frontend, core = made(scan=scan), engine(thought_stride=5)
    seen = images(2, frontend)
    stream = Stream(core, frontend, batch_size=2)
    answers, confidence = look(stream, seen)
    assert stream.state.position.tolist() == [0, 0]
    ticks = []
    for vector in frontend.embed(seen).unbind(1):
        logits, sure = stream.tick_vec(vector)
        ticks.append(logits)
    naive = torch.stack([torch.stack(ticks[: t + 1]).mean(0) for t in range(16)], dim=1)
    torch.testing.assert_close(answers, naive, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(confidence, sure, rtol=1e-4, atol=1e-5)


def test_an_answer_does_not_depend_on_the_other_images() -> None:
    frontend, core = made(), engine()
    seen = images(6, frontend)
    together, _ = look(Stream(core, frontend), seen)
    for i in range(6):
        alone, _ = look(Stream(core, frontend), seen[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stem", ["conv", "patch"])
@pytest.mark.parametrize("answer", ["pooled", "every"])
def test_every_parameter_learns_from_images_alone(stem: str, answer: str) -> None:
    """A thought enters only an image longer than `thought_stride`; else its gate cannot learn."""
    frontend, core = made(stem=stem, answer=answer).train(), engine(thought_stride=8).train()
    seen, targets = images(32, frontend), torch.arange(32) % 10
    vectors = frontend.embed(seen)
    h, lb, _ = core.tick_chunk_train(vectors, core.initial_state(32))
    score = frontend.score(h, targets)
    doubt = F.binary_cross_entropy_with_logits(
        core.confidence_logit(h[:, -1].detach()), score.correct.float()
    )
    (score.loss + lb + doubt).backward()
    for module in (core, frontend):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
            assert parameter.grad.isfinite().all(), name


def test_weights_decide_the_answers() -> None:
    """Nothing but options, schema and the state dict is needed to build a front-end again."""
    frontend, core = made(scan="snake").train(), engine()
    hidden(frontend, core, images(8, frontend))  # moves the running statistics
    again = VisionFrontend(D, options(scan="snake"), {"classes": NAMES})
    again.load_state_dict(frontend.state_dict())
    seen = images(4, frontend)
    assert torch.equal(again.eval().embed(seen), frontend.eval().embed(seen))


@pytest.mark.parametrize("stem", ["conv", "patch"])
def test_it_learns(stem: str) -> None:
    """Twenty images by heart."""
    frontend, core = made(stem=stem).train(), engine(n_layers=1).train()
    seen, targets = images(20, frontend), torch.arange(20) % 10
    optimizer = torch.optim.AdamW([*core.parameters(), *frontend.parameters()], lr=5e-3)
    for _ in range(40):
        score = frontend.score(hidden(frontend, core, seen), targets)
        optimizer.zero_grad()
        score.loss.backward()
        optimizer.step()
    assert score.loss.item() < 0.2
    assert score.correct.all()
