"""Compiled ticks are the same function."""

from __future__ import annotations

import pytest
import torch

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, EngineState


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_ticks_are_the_same_ticks() -> None:
    """Across an entering thought, too."""
    config = EngineConfig(d_model=32, n_heads=2, n_layers=2, d_ff=32, thought_stride=5)
    torch.manual_seed(0)
    engine = ContinuousThoughtEngine(config).eval()
    vectors = torch.randn(1, 12, 32)

    def ticks() -> tuple[torch.Tensor, EngineState]:
        state, hidden = engine.initial_state(1), []
        with torch.no_grad():
            for vector in vectors.unbind(1):
                h, _, state = engine.tick_vec(vector, state)
                hidden.append(h)
        return torch.stack(hidden), state

    plain, plain_state = ticks()
    engine.compile_ticks()
    compiled, state = ticks()
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.blocks[1].S, plain_state.blocks[1].S, rtol=1e-4, atol=1e-5)
    assert int(state.position) == 12


def test_more_streams_than_experts_are_refused() -> None:
    engine = ContinuousThoughtEngine(EngineConfig(d_model=32, d_ff=32, n_experts=4, top_k=2))
    with pytest.raises(ValueError, match="at most 2 streams"):
        engine.compile_ticks(batch_size=3)
