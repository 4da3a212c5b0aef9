"""What is new learns from the first step on, and copies do not stay copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import Grown, grow, tokens, trained, warm
from torch import Tensor

WIDER = {"d_model": 32, "n_heads": 4}


@pytest.fixture(scope="module")
def model() -> Any:
    return trained()


def gradients(model: Any, grown: Grown) -> dict[str, Tensor]:
    """By parameter, of the first step after growth, in streams that go on."""
    trees = grown.model.gradients(tokens(3, 65, seed=9), grown.state(warm(model)))
    return {f"{m}/{n}": g for m, tree in trees.items() for n, g in tree.items()}


def assert_alive(name: str, gradient: Tensor, dim: int, begin: int) -> None:
    """Each new index along `dim` receives something."""
    new = gradient.narrow(dim, begin, gradient.shape[dim] - begin)
    each = new.transpose(0, dim).flatten(1).abs().amax(1) if new.dim() > 1 else new.abs()
    assert (each > 0).all(), f"{name}: {int((each == 0).sum())} of {len(each)} receive nothing"


def test_every_new_channel_and_head(model: Any) -> None:
    grown = grow(model, WIDER)
    old = model.parameters()
    found = gradients(model, grown)
    assert found.keys() == old.keys()
    checked = 0
    for name, gradient in found.items():
        for dim, (was, now) in enumerate(zip(old[name].shape, gradient.shape, strict=True)):
            if was != now:
                assert_alive(name, gradient, dim, was)
                checked += 1
    assert checked > 30


@pytest.mark.parametrize(
    ("fields", "slices"),
    [
        ({"expert_rank": 24}, {"V1": (2, 8), "U1": (1, 8), "V2": (2, 8), "U2": (1, 8)}),
        ({"d_ff": 32}, {"U1": (2, 16), "b1": (1, 16), "V2": (1, 16)}),
        ({"n_experts": 8}, dict.fromkeys(("V1", "U1", "V2", "U2", "b1", "b2"), (0, 4))),
    ],
    ids=str,
)
def test_every_new_unit(model: Any, fields: Any, slices: dict[str, tuple[int, int]]) -> None:
    found = gradients(model, grow(model, fields))
    for block in range(2):
        for name, (dim, begin) in slices.items():
            full = f"engine/blocks.{block}.experts.experts.{name}"
            assert_alive(full, found[full], dim, begin)


def test_every_new_oscillator(model: Any) -> None:
    found = gradients(model, grow(model, {"n_oscillators": 8, "coupling_rank": 4}))
    for block in range(2):
        for name, dim, begin in (
            ("omega", 0, 4),
            ("coupling_u", 0, 4),
            ("coupling_u", 1, 2),
            ("coupling_lambda", 0, 2),
            ("drive.weight", 0, 4),
            ("drive.bias", 0, 4),
        ):
            full = f"engine/blocks.{block}.phases.{name}"
            assert_alive(full, found[full], dim, begin)
        bias = found[f"engine/blocks.{block}.phases.drive.bias"]
        assert not torch.allclose(bias[:4], bias[4:], rtol=1e-3)


def test_new_blocks_learn_at_once_and_wholly_from_the_second_step(model: Any) -> None:
    grown = grow(model, {"n_layers": 4})
    first = gradients(model, grown)
    for block in (1, 3):  # those that are new
        assert first[f"engine/blocks.{block}.attention.out_proj.weight"].abs().max() > 0
        assert first[f"engine/blocks.{block}.experts.experts.U2"].abs().amax((1, 2)).min() > 0
    with torch.no_grad():
        for name, parameter in grown.model.parameters().items():
            parameter.sub_(0.01 * first[name].sign())
    second = gradients(model, grown)
    for name, gradient in second.items():
        assert gradient.abs().max() > 0, name


def test_copies_part(model: Any) -> None:
    """Where a channel or a head is written twice, the two receive different gradients."""
    found = gradients(model, grow(model, WIDER))
    d = 16
    embedding = found["frontend-text/weight"]
    pairs = [(embedding[:, :d], embedding[:, d:])]
    for block in range(2):
        out = found[f"engine/blocks.{block}.attention.out_proj.weight"]
        into = found[f"engine/blocks.{block}.attention.in_proj.weight"].view(4, 4, 8, 2 * d)
        U2 = found[f"engine/blocks.{block}.experts.experts.U2"]
        pairs += [(out[:d], out[d:]), (U2[..., :d], U2[..., d:]), (into[:, :2], into[:, 2:])]
    for a, b in pairs:
        alike = (a - b).abs() < 1e-3 * torch.maximum(a.abs(), b.abs())
        assert alike[(a != 0) | (b != 0)].float().mean() < 0.05


def test_channels_over_are_written_to(model: Any) -> None:
    """Where the width is no multiple, what writes the new channels learns at once."""
    found = gradients(model, grow(model, {"d_model": 40, "n_heads": 5}))
    for name, dim in (
        ("frontend-text/weight", 1),
        ("engine/blocks.0.attention.out_proj.weight", 0),
        ("engine/blocks.1.experts.experts.U2", 2),
        ("engine/blocks.1.experts.experts.b2", 1),
    ):
        assert_alive(name, found[name], dim, 16)
