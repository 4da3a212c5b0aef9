"""The four forms of the fractal attention, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fractus_bench.memory import peak_mb
from fractus_bench.records import Measured
from fractus_bench.timing import compare
from fractus_core.engine import EngineConfig
from fractus_core.engine.attention import DecayFactors, attend, log_decays, section_length
from fractus_core.engine.oracles import (
    attention_einsum,
    attention_prefix_sum,
    attention_recurrence,
)

ROWS, WIDTH = 8, 256
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def chunked(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return attend(q, k, v, S, z, DecayFactors.powers(log_decay, section_length(q.shape[3])))


KERNELS: dict[str, Kernel] = {
    "recurrence": attention_recurrence,
    "masked einsum": attention_einsum,
    "prefix sum": attention_prefix_sum,
    "chunked": chunked,
}


def attention(*, repeats: int, chunk_len: int, d_head: int) -> Measured:
    """`error` is the largest difference from the recurrence."""
    config = EngineConfig(d_model=WIDTH, n_heads=WIDTH // d_head)
    B, H, L, D = ROWS, config.n_heads, config.n_levels, d_head
    draw = torch.Generator().manual_seed(0)
    q, k = torch.rand((2, B, H, L, chunk_len, D), generator=draw).add(0.1).unbind()
    v, weight = torch.randn(B, H, chunk_len, D, generator=draw), torch.randn(chunk_len, D)
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    S, z = torch.zeros(B, L, H, D, D), torch.zeros(B, L, H, D)
    log_decay = log_decays(config)

    def read(kernel: Kernel) -> Tensor:
        q, k, v = inputs
        return kernel(q, k, v, S, z, log_decay)[0]

    def call(kernel: Kernel) -> Callable[[], int]:
        def forward_and_backward() -> int:
            for tensor in inputs:
                tensor.grad = None
            (read(kernel) * weight).sum().backward()
            return B * chunk_len

        return forward_and_backward

    calls = {name: call(kernel) for name, kernel in KERNELS.items()}
    with torch.no_grad():
        exact = read(attention_recurrence)
        errors = {name: float((read(f) - exact).abs().max()) for name, f in KERNELS.items()}
    labels = {name: {"C": chunk_len, "d_head": d_head} for name in calls}
    rows = compare(calls, repeats, labels=labels)
    for row in rows:
        error = errors[row["variant"]]
        row["peak_mb"] = peak_mb(calls[row["variant"]])
        row["error"] = error if math.isfinite(error) else "overflows"
    return Measured(rows, {"rows": B, "heads": H, "levels": L})
