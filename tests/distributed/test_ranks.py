"""What ranks agree on, and what they make whole and part; in one pair of processes."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrunning import on_ranks

from fractus_core.errors import FractusError, ToldError
from fractus_core.runs import ranks, sharded


def agreements(rank: int) -> None:
    assert (ranks.world(), ranks.rank(), ranks.is_first()) == (2, rank, rank == 0)
    assert ranks.first(lambda: {"rank": rank, "π": [0.1, None]}) == {"rank": 0, "π": [0.1, None]}
    assert ranks.first(lambda: "") == ""
    calls = itertools.count()
    for error, of_others in ((FractusError("full"), ToldError), (KeyboardInterrupt(), None)):
        with pytest.raises(type(error) if rank == 0 else (of_others or KeyboardInterrupt)):
            ranks.first(partial(_raise, error, calls))
    assert next(calls) == (2 if rank == 0 else 0)
    assert ranks.agree(rank + 0.1, rank + 7.5, asked=rank == 1) == ([0.1, 7.5], True)
    assert ranks.agree(3.0, asked=False) == ([3.0], False)
    assert ranks.least(10 - rank) == 9
    x = torch.arange(4.0) + 10 * rank
    assert ranks.mean(x).tolist() == [5, 6, 7, 8]
    assert ranks.own(torch.arange(6)).tolist() == [3 * rank + i for i in range(3)]
    assert ranks.together(x).tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def _raise(error: BaseException, calls: Any) -> None:
    next(calls)
    raise error


def gradients(rank: int) -> None:
    """The mean over ranks of the gradients of f(mean) is the gradient of f of the mean."""
    from fractus_trainers.parallel import Parallel, mean_over_ranks

    rows = torch.tensor([[0.5, 1.0], [2.0, -1.0]])
    x = rows[rank].clone().requires_grad_()
    value = mean_over_ranks(x).square().sum()
    value.backward()
    every = rows.clone().requires_grad_()
    expected = every.mean(0).square().sum()
    expected.backward()
    assert torch.equal(value, expected)
    assert x.grad is not None and every.grad is not None
    # Averaged over two ranks, of whose mean each row is a half.
    assert torch.equal(x.grad / 2, every.grad[rank])

    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(3, generator=Parallel.noise(None, generator))  # type: ignore[arg-type]
    assert not torch.equal(*ranks.together(noise.unsqueeze(0)))
    assert len(set(ranks.together(torch.rand(1, generator=generator)).tolist())) == 1


def graphs(rank: int) -> None:
    """A compiled block can have it in one graph."""
    from fractus_trainers.parallel import mean_over_ranks

    compiled = torch.compile(mean_over_ranks, backend="eager", fullgraph=True)
    assert compiled(torch.tensor([2.0 * rank])).tolist() == [1.0]


def muon(rank: int) -> None:
    """Over parts, of which one may be smaller than the other, it is what it is over the whole."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from fractus_trainers.muon import Muon

    def make() -> nn.Module:
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(8, 5, bias=False), nn.Conv2d(3, 4, 3, bias=False))
        made.experts = nn.Parameter(torch.randn(3, 6, 8))
        return made

    plain, parts = make(), fully_shard(make())
    for module in (plain, parts):
        torch.manual_seed(1)
        matrices, kernels, experts = (
            next(p for p in module.parameters() if p.dim() == n) for n in (2, 4, 3)
        )
        groups = [{"params": [matrices, experts]}, {"params": [kernels], "flatten": True}]
        optimizer = Muon(groups, lr=0.1, weight_decay=0.1)
        for _ in range(3):
            for p in (matrices, kernels, experts):
                p.grad = sharded.part(torch.randn(p.shape), like=p)
            optimizer.step()
    for (name, p), q in zip(plain.named_parameters(), parts.parameters(), strict=True):
        assert sharded.is_sharded(q)
        assert torch.equal(p, sharded.whole(q)), name
    tree = sharded.whole_tree({"a": list(parts.parameters()), 1: "b"})
    assert tree[1] == "b"
    for p, found in zip(plain.parameters(), tree["a"], strict=True):
        assert found is None if rank else torch.equal(found, p)


@pytest.mark.parametrize(
    "check", [agreements, gradients, muon, pytest.param(graphs, marks=pytest.mark.slow)]
)
def test_on_two_ranks(tmp_path: Path, check: Any) -> None:
    on_ranks(2, check, tmp_path / "log")
