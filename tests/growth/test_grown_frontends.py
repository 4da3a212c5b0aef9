"""Front-ends follow a wider engine, whatever they read, and need do nothing for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from growing_runs import goes_on, grow, refusal
from running import OFTEN, PROSE, TINY, TRAINER
from torch import Tensor, nn

from fractus_core.cli.main import main
from fractus_core.engine import EngineConfig
from fractus_core.growth.width import Width
from fractus_vision.frontend import VisionFrontend
from fractus_vision.plugin import fractus_frontends as vision_frontends

if TYPE_CHECKING:
    from conftest import Site

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "fractus-audio"))
D, WIDER = 16, 48


def options(spec: Any, **given: Any) -> dict[str, Any]:
    return {option.name: option.default for option in spec.options} | given


def sizes(d: int) -> EngineConfig:
    return EngineConfig(d_model=d, n_heads=d // 8, expert_rank=8, d_ff=8, decay_heads=2)


def follow(small: nn.Module, large: nn.Module) -> Width:
    """`large` becomes `small`, wider."""
    growth = Width(
        sizes(D),
        sizes(WIDER),
        {"frontend-x": dict(large.state_dict())},
        torch.Generator().manual_seed(0),
    )
    large.load_state_dict(
        growth.weights({"engine": {}, "frontend-x": dict(small.state_dict())})["frontend-x"]
    )
    return growth


def assert_followed(small: Any, large: Any, observations: Tensor) -> None:
    with torch.no_grad():
        for _ in range(3):  # so that there is something in what it averages
            small.embed(observations + 3)
    growth = follow(small, large)
    small.eval()
    large.eval()
    with torch.no_grad():
        vectors, wider = small.embed(observations), large.embed(observations)
        for part in wider.split(D, dim=-1):
            assert torch.allclose(part, vectors, atol=1e-5 * float(vectors.abs().max()))
        hidden = torch.randn(5, D)
        parts = torch.rand(5, WIDER).view(5, WIDER // D, D)
        shared = hidden.unsqueeze(1) * parts / parts.sum(1, keepdim=True)
        answers = small.answer(hidden)
        assert torch.allclose(large.answer(shared.flatten(1)), answers, atol=1e-5)
        assert torch.allclose(large.answer(growth.hidden(hidden)), answers, atol=1e-5)
    large.train()
    large.embed(observations).square().mean().backward()
    # Copies of a channel must not be told to stay alike by every weight of the front-end itself,
    # but what reads them does that: here it is enough that all learn.
    assert all(p.grad is not None for n, p in large.named_parameters() if "head" not in n)


@pytest.mark.parametrize("stem", ["patch", "conv"])
def test_vision(stem: str) -> None:
    spec = vision_frontends()[0]
    made = [
        VisionFrontend(d, options(spec, stem=stem, size=16), {"classes": ["a", "b", "c"]})
        for d in (D, WIDER)
    ]
    images = torch.randint(0, 200, (4, 3, 16, 16)).to(torch.uint8)
    assert_followed(*made, images)


def test_audio_of_a_stranger() -> None:
    from fractus_audio.frontend import AudioFrontend
    from fractus_audio.plugin import fractus_frontends

    given = options(fractus_frontends()[0], seconds=0.2, mels=16)
    made = [AudioFrontend(d, given, {"classes": ["a", "b", "c"]}) for d in (D, WIDER)]
    levels = torch.randn(4, made[0].log_mel.frames(made[0].length), 16)
    assert_followed(*made, levels)


def test_vision_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractus_vision.glyphs.HELD_OUT", 64)
    out = tmp_path / "run"
    few = ("--set", "d_model=32", "--set", "n_layers=1", "--vision.batch_size", "16", *OFTEN)
    stem = ("--vision.stem", "patch", "--vision.patch_size", "8")
    start = ["run", "--frontend", "vision", "--out", str(out), "--steps", "3", *few, *stem]
    assert main([*start, *TRAINER]) == 0
    assert main(grow(out, tmp_path / "grown", "--set", "d_model=64", "--set", "n_heads=4")) == 0
    before, after = goes_on(out), goes_on(tmp_path / "grown")
    assert (before - after).abs().max() < 1e-4
    assert main(["run", "--resume", str(tmp_path / "grown"), "--steps", "3"]) == 0


STRANGE = """
    from torch import nn
    from fractus_text.frontend import TextFrontend

    class Strange(TextFrontend):
        def __init__(self, d_model, options, schema):
            super().__init__(d_model, options, schema)
            self.head = {head}

        def answer(self, hidden):
            return super().answer(self.head(hidden))
    """
CHANGES = "nn.Sequential(nn.Linear(d_model, d_model), nn.GELU())"
WIDE = "nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model))"


@pytest.mark.parametrize(
    ("head", "says"),
    [(CHANGES, "its answers change"), (WIDE, "head.0.weight is (64, 32) and would be (128, 64)")],
)
def test_what_cannot_follow_is_refused(
    site: Site,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    head: str,
    says: str,
) -> None:
    site.plugin("stranger", PROSE.replace("{target}", "strange:Strange"))
    (site.folder / "strange.py").write_text(
        __import__("textwrap").dedent(STRANGE).format(head=head)
    )
    run = ["run", "--frontend", "prose", "--data", str(corpus), "--out", str(tmp_path / "run")]
    few = [o.replace("--text.", "--prose.") for o in TINY]
    assert main([*run, "--steps", "2", *few]) == 0
    wider = ("--set", "d_model=64", "--set", "n_heads=4")
    line = refusal(capsys, grow(tmp_path / "run", tmp_path / "grown", *wider))
    assert "front-end 'prose' does not grow with d_model" in line
    assert says in line
    assert not (tmp_path / "grown").exists()
    # It never sees another change.
    assert main(grow(tmp_path / "run", tmp_path / "grown", "--set", "n_layers=2")) == 0
