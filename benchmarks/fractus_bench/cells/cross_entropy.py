"""The head's loss: all logits at once, or a few rows of them at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fractus_bench.memory import peak_mb
from fractus_bench.plain import PlainHead
from fractus_bench.records import Measured
from fractus_bench.timing import compare
from fractus_text.embedding import TiedEmbedding


def cross_entropy(*, repeats: int, vocabulary: int, tokens: int, d_model: int) -> Measured:
    """Forward and backward of `score`, as the text front-end does it."""
    torch.manual_seed(0)
    fused = TiedEmbedding(vocabulary, d_model)
    plain = PlainHead(vocabulary, d_model)
    plain.load_state_dict(fused.state_dict())
    hidden = torch.randn(1, tokens, d_model, requires_grad=True)
    targets = torch.randint(vocabulary, (1, tokens))

    def call(head: TiedEmbedding) -> Callable[[], int]:
        def forward_and_backward() -> int:
            head.weight.grad = hidden.grad = None
            head.score(hidden, targets).loss.backward()
            return tokens

        return forward_and_backward

    heads = {"materialised": plain, "fused": fused}
    calls = {name: call(head) for name, head in heads.items()}
    exact = plain.score(hidden, targets).loss
    rows = compare(calls, repeats, labels={name: {"V": vocabulary} for name in calls})
    for row in rows:
        error = (heads[row["variant"]].score(hidden, targets).loss - exact).detach().abs()
        row |= {"peak_mb": peak_mb(calls[row["variant"]]), "error": float(error)}
    return Measured(rows, {"tokens": tokens, "d_model": d_model})
