"""Averages of gradients, grown, are averages of the grown model's gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import grow, tokens, trained, warm

from fractus_core.runs.optimizers import optimizers_of

D = 16


@pytest.fixture(scope="module")
def model() -> Any:
    return trained()


def test_of_a_wider_engine(model: Any) -> None:
    """What reads copies has its old gradient; what is copied shares it among the copies."""
    grown = grow(model, {"d_model": 2 * D, "n_heads": 4})
    text, state = tokens(3, 33, seed=9), warm(model)
    old = model.gradients(text, state)
    new = grown.model.gradients(text, grown.state(state))
    kept = grown.moments(old, 1)

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-2, atol=1e-4 * float(b.abs().max()))

    for block in range(2):
        V1 = f"blocks.{block}.experts.experts.V1"
        assert close(kept["engine"][V1], new["engine"][V1])
        drive = f"blocks.{block}.phases.drive.weight"
        assert close(kept["engine"][drive], new["engine"][drive])
        for name, dim in (("experts.experts.U2", 2), ("experts.experts.b2", 1)):
            full = f"blocks.{block}.{name}"
            halves = [t["engine"][full].chunk(2, dim) for t in (kept, new)]
            assert close(sum(halves[0]), sum(halves[1]))
            assert torch.equal(*halves[0])
    for name in ("final_norm.weight", "final_norm.bias"):
        a, b = kept["engine"][name], new["engine"][name]
        assert (a - b).norm() < 0.2 * b.norm()  # the thought's gradient comes by other ways
    halves = [t["frontend-text"]["weight"].chunk(2, 1) for t in (kept, new)]
    assert close(sum(halves[0]), sum(halves[1]))


def test_squares_of_a_wider_engine(model: Any) -> None:
    grown = grow(model, {"d_model": 2 * D, "n_heads": 4})
    gradient = model.gradients(tokens(3, 33, seed=9), warm(model))
    squares = {m: {n: g.square() for n, g in tree.items()} for m, tree in gradient.items()}
    first, second = grown.moments(gradient, 1), grown.moments(squares, 2)
    for module, tree in first.items():
        for name, g in tree.items():
            assert torch.allclose(second[module][name], g.square(), rtol=1e-5), name


@pytest.mark.parametrize(
    ("fields", "name", "dim"),
    [({"expert_rank": 16}, "V1", 2), ({"d_ff": 32}, "V2", 1), ({"d_ff": 32}, "b1", 1)],
)
def test_of_new_units_are_zero(model: Any, fields: Any, name: str, dim: int) -> None:
    old = model.gradients(tokens(3, 33, seed=9), warm(model))
    full = f"blocks.0.experts.experts.{name}"
    was, kept = old["engine"][full], grow(model, fields).moments(old, 1)["engine"][full]
    n = was.shape[dim]
    assert torch.equal(kept.narrow(dim, 0, n), was)
    assert kept.narrow(dim, n, kept.shape[dim] - n).count_nonzero() == 0


def test_new_blocks_have_none(model: Any) -> None:
    old = model.gradients(tokens(3, 33, seed=9), warm(model))
    kept = grow(model, {"n_layers": 4}).moments(old, 1)["engine"]
    name = "attention.out_proj.weight"
    assert torch.equal(kept[f"blocks.2.{name}"], old["engine"][f"blocks.1.{name}"])
    for n, t in kept.items():
        if n.startswith(("blocks.1.", "blocks.3.")):
            assert t.count_nonzero() == 0, n


def test_optimizers_are_found_wherever_they_are() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    first, second = torch.optim.SGD([parameter]), torch.optim.AdamW([parameter])

    class Deep:
        def __init__(self) -> None:
            self.all = {"a": [first], "b": (3, None)}
            self.own = self

    class Trainer:
        def __init__(self) -> None:
            self.deep, self.other, self.again = Deep(), second, second

    assert list(optimizers_of(Trainer())) == [first, second]
