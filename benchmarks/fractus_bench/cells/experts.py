"""Experts: weights gathered per token, one expert after the other, or grouped products."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from fractus_bench.memory import peak_mb
from fractus_bench.plain import experts_loop
from fractus_bench.records import Measured
from fractus_bench.timing import compare
from fractus_bench.training import MIDDLE, make_model, training_step
from fractus_core.engine import EngineConfig
from fractus_core.engine.experts import LowRankExperts, PhaseRoutedExperts
from fractus_core.engine.oracles import experts_gather


def dispatch(*, repeats: int, n_experts: int, tokens: int) -> Measured:
    """Forward and backward of one layer's experts; `error` is against the gather."""
    config = EngineConfig(**MIDDLE | {"n_experts": n_experts})
    torch.manual_seed(0)
    routed = PhaseRoutedExperts(config)
    experts = cast(LowRankExperts, routed.experts)
    x = torch.randn(tokens, config.d_model, requires_grad=True)
    gates = routed.gates(torch.randn(tokens, config.n_oscillators).mul(3))
    weights, chosen = gates.topk(config.top_k)
    upstream = torch.randn(tokens, config.d_model)

    forms: dict[str, Callable[[], Tensor]] = {
        "gather": lambda: experts_gather(experts, x, weights, chosen),
        "loop": lambda: experts_loop(experts, x, weights, chosen),
        "grouped": lambda: routed.dispatch(x, weights, chosen),
    }

    def call(form: Callable[[], Tensor]) -> Callable[[], int]:
        def forward_and_backward() -> int:
            experts.zero_grad()
            x.grad = None
            (form() * upstream).sum().backward()
            return tokens

        return forward_and_backward

    calls = {name: call(form) for name, form in forms.items()}
    with torch.no_grad():
        exact = forms["gather"]()
        errors = {name: float((form() - exact).abs().max()) for name, form in forms.items()}
    rows = compare(calls, repeats, labels={name: {"E": n_experts} for name in calls})
    for row in rows:
        row |= {"peak_mb": peak_mb(calls[row["variant"]]), "error": errors[row["variant"]]}
    return Measured(rows, {"tokens": tokens})


def step(*, repeats: int, n_experts: list[int], vocabulary: int) -> Measured:
    """The whole training step, of 8 rows of 128 tokens, by the number of experts."""
    calls = {}
    for E in n_experts:
        model = make_model(vocabulary, EngineConfig(**MIDDLE | {"n_experts": E}))
        calls[f"{E} experts"] = training_step(*model, optimizer="sgd", chunk_len=128)
    labels = {f"{E} experts": {"E": E} for E in n_experts}
    return Measured(compare(calls, repeats, labels=labels), {"vocabulary": vocabulary})
