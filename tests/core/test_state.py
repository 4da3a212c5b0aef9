"""The state is a value: nothing that is done with it changes it."""

from __future__ import annotations

import re

import pytest
import torch
from engines import (
    assert_close,
    assert_identical,
    assert_same_state,
    awake,
    rows_of,
    size_of,
    tensors,
    tiny,
    tiny_reference,
    vectors,
    warm,
)
from safetensors.torch import load, save

from fractus_core.engine import EngineConfig, EngineState

both = pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)


@both
def test_calls_leave_their_state_alone(config: EngineConfig) -> None:
    engine = awake(config)
    state = warm(engine)
    before = state.clone()
    x = vectors(config, 3, 7)
    engine.tick_chunk_train(x, state)[0].sum().backward()
    engine.tick_chunk(x, state)
    engine.tick_vec(x[:, 0], state)
    engine.tick_vec(None, state)
    state.reset()
    state.reset(torch.tensor([True, False, False]))
    assert_identical(state, before)


@both
def test_shapes_and_precision(config: EngineConfig) -> None:
    engine = awake(config)
    start = engine.initial_state(3)
    after = engine.tick_chunk(vectors(config, 3, 4), start)[1]
    with torch.autocast("cpu", torch.bfloat16):
        autocast = engine.tick_chunk(vectors(config, 3, 4), start)[1]
    levels = config.n_levels if config.dynamics == "default" else 1
    assert start.blocks[0].S.shape == (3, levels, 2, 8, 8)
    assert start.blocks[0].z.shape == (3, levels, 2, 8)
    assert start.batch_size == 3
    for state in (start, after, autocast):
        for name, tensor in tensors(state).items():
            assert tensor.shape == tensors(start)[name].shape, name
            assert tensor.dtype == (torch.int64 if name == "position" else torch.float32), name


def test_a_chunk_leaves_nothing_but_the_state() -> None:
    """A view of the last token would keep the whole chunk in memory."""
    engine = awake(tiny())
    state = engine.initial_state(3)
    _, after_tick = engine.tick_chunk(vectors(engine.config, 3, 1), state)
    _, after_chunk = engine.tick_chunk(vectors(engine.config, 3, 100), state)
    assert size_of(after_tick) == size_of(after_chunk) == size_of(state)


def test_clone_shares_no_memory() -> None:
    state = warm(awake(tiny()))
    copy = state.clone()
    pointers = {t.untyped_storage().data_ptr() for t in tensors(state).values()}
    assert pointers.isdisjoint(t.untyped_storage().data_ptr() for t in tensors(copy).values())
    assert_identical(copy, state)


def test_detach_cuts_the_graph() -> None:
    engine = awake(tiny())
    x = vectors(engine.config, 2, 6).requires_grad_()
    _, _, state = engine.tick_chunk_train(x, engine.initial_state(2))
    attached = [name for name, t in tensors(state).items() if t.requires_grad]
    assert "thought" in attached
    assert "blocks.0.S" in attached
    assert not any(t.requires_grad for t in tensors(state.detach()).values())
    engine.tick_vec(x[:, 0].detach(), state.detach())[0].sum().backward()
    assert x.grad is None
    engine.tick_vec(x[:, 0].detach(), state)[0].sum().backward()
    assert x.grad is not None


def test_to_moves_all_but_the_position() -> None:
    state = warm(awake(tiny())).to("meta")
    assert state.device.type == "meta"
    for name, tensor in tensors(state).items():
        assert tensor.device.type == ("cpu" if name == "position" else "meta"), name


@both
def test_reset_row_is_a_fresh_stream(config: EngineConfig) -> None:
    engine = awake(config)
    state = warm(engine)
    reset = state.reset(torch.tensor([True, False, True]))
    assert_identical(rows_of(reset, [0, 2]), engine.initial_state(2))
    assert_identical(rows_of(reset, [1]), rows_of(state, [1]))
    assert_identical(state.reset(), engine.initial_state(3))
    x = vectors(config, 3, 9)
    hidden, after = engine.tick_chunk(x, reset)
    alone, alone_after = engine.tick_chunk(x[[0, 2]], engine.initial_state(2))
    assert_close(hidden[[0, 2]], alone)
    assert_same_state(rows_of(after, [0, 2]), alone_after)


@pytest.mark.parametrize(
    "rows", [torch.tensor([1, 0, 1]), torch.ones(2, dtype=torch.bool), torch.tensor(True)]
)
def test_reset_wants_a_mask_of_the_rows(rows: torch.Tensor) -> None:
    state = awake(tiny()).initial_state(3)
    given = re.escape(f"{tuple(rows.shape)} {rows.dtype}")
    with pytest.raises(ValueError, match=given + r".*must be \(3,\) torch.bool"):
        state.reset(rows)


@both
def test_state_dict_round_trip(config: EngineConfig) -> None:
    engine = awake(config)
    # Straight from training, its graph still attached.
    _, _, state = engine.tick_chunk_train(vectors(config, 3, 7), warm(engine))
    loaded = EngineState.from_state_dict(state.state_dict())
    assert_identical(loaded, state)
    x = vectors(config, 3, 4)
    with torch.no_grad():
        assert torch.equal(
            engine.tick_chunk_train(x, loaded)[0], engine.tick_chunk_train(x, state)[0]
        )


def test_state_dict_is_made_of_tensors_to_save() -> None:
    engine = awake(tiny())
    _, state = engine.tick_chunk(vectors(engine.config, 3, 7), warm(engine))
    saved = state.state_dict()
    flat = {
        f"blocks.{b}.{name}": tensor
        for b, block in enumerate(saved["blocks"])
        for name, tensor in block.items()
    }
    flat |= {"thought": saved["thought"], "position": saved["position"]}
    read = load(save(flat))
    assert read.keys() == tensors(state).keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors(state).items())
