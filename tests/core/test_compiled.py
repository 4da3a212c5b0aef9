"""Compiled ticks are the same function."""

from __future__ import annotations

import re

import pytest
import torch

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, FractusError, Stream
from fractus_text.embedding import TiedEmbedding
from fractus_trainers.compiled import Compilations


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("streams", "n_experts"),
    [(1, 4), (3, 4), (5, 16)],
    ids=["one", "every expert for each token", "an expert's weights for each token"],
)
def test_compiled_ticks_are_the_same_ticks(streams: int, n_experts: int) -> None:
    """Across an entering thought and a thought without input, too, at different positions."""
    config = EngineConfig(
        d_model=32, n_heads=2, n_layers=2, d_ff=32, n_experts=n_experts, thought_stride=5
    )
    torch.manual_seed(0)
    engine, head = ContinuousThoughtEngine(config).eval(), TiedEmbedding(50, 32)
    with torch.no_grad():
        engine.confidence_head.weight.normal_()
    tokens = torch.randint(50, (12, streams))
    plain, compiled = (Stream(engine, head, batch_size=streams) for _ in range(2))
    compiled.compile()
    made = Compilations()
    for t, token in enumerate(tokens):
        if t == 7:  # rows need not be at the same position
            rows = torch.arange(streams) == 0
            plain.reset(rows)
            compiled.reset(rows)
        if t == 9:  # after a prompt, too, no other program is needed
            for stream in (plain, compiled):
                stream.read(tokens[:3].T)
        for found, expected in zip(compiled.tick(token), plain.tick(token), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert made.since() == 0
    for stream in (plain, compiled):
        stream.think(confidence=1.1, max_ticks=2)
    for found, expected in (
        (compiled.state.blocks[1].S, plain.state.blocks[1].S),
        (compiled.state.thought, plain.state.thought),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    assert compiled.state.position.tolist() == plain.state.position.tolist()
    assert compiled.state.position.tolist() == [10] + (streams - 1) * [17]


@pytest.mark.parametrize("compiler", ["/nowhere/g++", "false"])
def test_a_compiler_that_does_not_run(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    stream = Stream(
        ContinuousThoughtEngine(EngineConfig(d_model=32, d_ff=32)), TiedEmbedding(50, 32)
    )
    with pytest.raises(FractusError, match=re.escape(f"CXX is {compiler}")):
        stream.compile()
