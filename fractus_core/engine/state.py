"""What an engine carries from one tick to the next, as a value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockState:
    """One block's share. All fp32."""

    S: Tensor
    """(B, levels, H, d_head, d_head), the decayed sum of key-value outer products."""
    z: Tensor
    """(B, levels, H, d_head), the decayed sum of keys."""
    clock: Tensor
    """(B, N), the free-running phases, in radians."""
    shift_attention: Tensor
    """(B, d_model), what the token shift before the attention mixes into the next token."""
    shift_experts: Tensor
    """(B, d_model), the same before the experts."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state of B streams. A value: an engine is given one and returns the next.

    Always fp32, whatever the compute precision: a thousand ones summed in bf16 give 256.
    """

    blocks: tuple[BlockState, ...]
    thought: Tensor
    """(B, d_model), the last hidden vector."""
    position: Tensor
    """(B,) int64, ticks since the stream began. On the CPU, since it steers the loop."""

    @property
    def batch_size(self) -> int:
        return self.thought.shape[0]

    @property
    def device(self) -> torch.device:
        return self.thought.device

    def map(self, f: Callable[[Tensor], Tensor]) -> Self:
        """A state with `f` applied to each tensor but the position."""
        blocks = tuple(
            BlockState(*(f(getattr(block, field.name)) for field in dataclasses.fields(block)))
            for block in self.blocks
        )
        return dataclasses.replace(self, blocks=blocks, thought=f(self.thought))

    def detach(self) -> Self:
        """Cut from the graph: gradients stop here."""
        return self.map(Tensor.detach)

    def clone(self) -> Self:
        return dataclasses.replace(self.map(Tensor.clone), position=self.position.clone())

    def to(self, device: torch.device | str) -> Self:
        return self.map(lambda tensor: tensor.to(device))

    def reset(self, rows: Tensor | None = None) -> Self:
        """A state whose `rows` ((B,) bool; all by default) are as if their streams began now.

        Raises:
            ValueError: if `rows` is not a boolean mask of the batch size.
        """
        if rows is None:
            rows = torch.ones(self.batch_size, dtype=torch.bool)
        if rows.dtype != torch.bool or rows.shape != (self.batch_size,):
            raise ValueError(
                f"rows is {tuple(rows.shape)} {rows.dtype}: "
                f"must be ({self.batch_size},) torch.bool, one for each stream"
            )
        if not rows.any():
            return self
        here = rows.to(self.device, non_blocking=True)
        # Zeros are written, not multiplied in: nothing of a stream that went wrong may remain.
        state = self.map(
            lambda tensor: tensor.masked_fill(here.view(-1, *[1] * (tensor.dim() - 1)), 0.0)
        )
        return dataclasses.replace(state, position=self.position.masked_fill(rows.cpu(), 0))

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts of contiguous tensors without their graph, for checkpoints."""
        return {
            "blocks": [
                {
                    field.name: getattr(block, field.name).detach().contiguous()
                    for field in dataclasses.fields(block)
                }
                for block in self.blocks
            ],
            "thought": self.thought.detach(),
            "position": self.position,
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Self:
        blocks = tuple(BlockState(**block) for block in state["blocks"])
        return cls(blocks=blocks, thought=state["thought"], position=state["position"])
