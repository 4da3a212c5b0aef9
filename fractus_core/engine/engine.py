"""The Continuous Thought Engine."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fractus_core.engine.attention import DecayFactors, log_decays, section_length
from fractus_core.engine.block import Block
from fractus_core.engine.compiling import require_compiler
from fractus_core.engine.config import EngineConfig
from fractus_core.engine.experts import itself
from fractus_core.engine.probe import RoutingProbe
from fractus_core.engine.reference import ReferenceBlock
from fractus_core.engine.state import EngineState

MAX_PIECE = 128
"""Longest chunk that is one matrix product. Longer ones are cut, which changes no result."""


class ContinuousThoughtEngine(nn.Module):
    """Reads sequences of vectors and carries a state from each to the next.

    Any split of a sequence into calls gives the same hidden vectors and the same state. The engine
    knows no modality: front-ends make vectors of data and answers of hidden vectors.
    """

    log_decay: Tensor

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self.config = config
        block = ReferenceBlock if config.dynamics == "reference" else Block
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        self.final_norm = nn.LayerNorm(config.d_model) if config.final_norm else nn.Identity()
        self.confidence_head = nn.Linear(config.d_model, 1)
        nn.init.zeros_(self.confidence_head.weight)
        nn.init.zeros_(self.confidence_head.bias)
        self.checkpointing = False
        """Keep only what enters each block for the backward pass, and compute the rest again."""
        self.register_buffer("log_decay", log_decays(config), persistent=False)
        self.all_positions: Callable[[Tensor], Tensor] = itself
        """From the positions of the rows at hand to those of all that are read together: where
        other processes read more of a batch, its chunks are cut alike for all."""
        self._known_powers: dict[int, DecayFactors] = {}
        # Near zero: the thought has to earn its way in.
        self.thought_gate = (
            nn.Parameter(torch.full((config.d_model,), 0.01)) if config.thought_stride else None
        )

    @property
    def layers(self) -> Iterable[Block]:
        return cast(Iterable[Block], self.blocks)

    # ---------------------------------------------------------------------------------- calls

    def initial_state(self, batch_size: int) -> EngineState:
        """The state of `batch_size` streams that have read nothing, on the engine's device."""
        if batch_size < 1:
            raise ValueError(f"batch_size = {batch_size}: must be at least 1")
        device = self.log_decay.device
        return EngineState(
            blocks=tuple(block.initial_state(batch_size, device) for block in self.layers),
            thought=torch.zeros(batch_size, self.config.d_model, device=device),
            position=torch.zeros(batch_size, dtype=torch.int64),
        )

    def tick_chunk_train(
        self, vectors: Tensor, state: EngineState, probe: RoutingProbe | None = None
    ) -> tuple[Tensor, Tensor, EngineState]:
        """Read C vectors, differentiably.

        Args:
            vectors: (B, C, d_model), floating point.
            state: of B streams. Gradients flow into it; `detach` it to cut them.
            probe: counts what the routers do.

        Returns:
            Hidden vectors (B, C, d_model); the load-balance loss, a scalar, summed over blocks and
            averaged over C; the state after the chunk.

        Raises:
            ValueError: if width, batch size, dtype or device do not fit.
        """
        self._check(vectors, state)
        C = vectors.shape[1]
        hidden, lb = [], vectors.new_zeros((), dtype=torch.float32)
        for start, end, entering in self._pieces(state.position, C):
            h, piece_lb, state = self._read(vectors[:, start:end], state, entering, probe)
            hidden.append(h)
            lb = lb + piece_lb * ((end - start) / C)
        return torch.cat(hidden, dim=1) if len(hidden) > 1 else hidden[0], lb, state

    forward = tick_chunk_train

    def compile_blocks(self, *, whole: bool = False, cuda_graphs: bool = False) -> None:
        """Have `torch.compile` fuse what is smooth in each block: all before its experts.

        For chunks of one shape; each other shape is compiled anew when it comes.

        Args:
            whole: each block whole, with its experts.
            cuda_graphs: replay its kernels as they were recorded. What a block returns is then
                overwritten when it is called again, after `torch.compiler`'s
                `cudagraph_mark_step_begin`.

        Raises:
            FractusError: there is no C++ compiler.
        """
        require_compiler()
        mode = "reduce-overhead" if cuda_graphs else None
        for block in self.layers:
            if whole:
                block.compile(dynamic=False, mode=mode)
            else:
                block.mix = torch.compile(  # type: ignore[method-assign]
                    block.mix, dynamic=False, mode=mode
                )

    @torch.no_grad()
    def tick_chunk(self, vectors: Tensor, state: EngineState) -> tuple[Tensor, EngineState]:
        """`tick_chunk_train` without gradients, returning hidden vectors and state only."""
        hidden, _, state = self.tick_chunk_train(vectors, state)
        return hidden, state

    def tick_vec(
        self, vector: Tensor | None, state: EngineState
    ) -> tuple[Tensor, Tensor, EngineState]:
        """One tick, differentiable.

        Args:
            vector: (B, d_model), or None to think on: the tick's only input is then the thought,
                which enters whatever the stream position.

        Returns:
            Hidden vectors (B, d_model); confidence (B,), the estimated probability that the top
            answer is right; the state after the tick.
        """
        vectors = torch.zeros_like(state.thought) if vector is None else vector
        vectors = vectors.unsqueeze(1)
        self._check(vectors, state)
        entering = (
            torch.ones_like(state.position, dtype=torch.bool)
            if vector is None
            else self._entering(state.position)
        )
        hidden, _, state = self._read(vectors, state, entering, None)
        hidden = hidden[:, 0]
        return hidden, self.confidence_logit(hidden).sigmoid(), state

    def confidence_logit(self, hidden: Tensor) -> Tensor:
        """Hidden (..., d_model) to the log-odds (...) that the top answer is right."""
        logit: Tensor = self.confidence_head(hidden)
        return logit.squeeze(-1)

    # -------------------------------------------------------------------------------- internal

    def _pieces(self, position: Tensor, length: int) -> Iterator[tuple[int, int, Tensor | None]]:
        """Cut a chunk where a thought enters: (start, end, mask (B,) of the rows it enters)."""
        if self.config.dynamics == "reference":  # in it a call is one piece, whatever its length
            yield 0, length, torch.ones_like(position, dtype=torch.bool)
            return
        stride = self.config.thought_stride
        thoughts = set()
        if stride:
            firsts = {-p % stride for p in self.all_positions(position).tolist()}
            thoughts = {t for first in firsts for t in range(first, length, stride)}
        edges = [*sorted(thoughts.union(range(0, length, MAX_PIECE))), length]
        for start, end in itertools.pairwise(edges):
            yield start, end, (position + start) % stride == 0 if start in thoughts else None

    def _entering(self, position: Tensor) -> Tensor | None:
        """Mask (B,) of the rows whose thought enters at this tick; None if it is none's."""
        if self.config.dynamics == "reference":
            return torch.ones_like(position, dtype=torch.bool)
        if not self.config.thought_stride:
            return None
        entering = position % self.config.thought_stride == 0
        # A compiled tick is one program, whatever the position.
        return entering if torch.compiler.is_compiling() or entering.any() else None

    def _read(
        self,
        vectors: Tensor,
        state: EngineState,
        entering: Tensor | None,
        probe: RoutingProbe | None,
    ) -> tuple[Tensor, Tensor, EngineState]:
        """One piece, at the start of which the thoughts of the rows `entering` enter."""
        h = vectors.float()
        if entering is not None:
            thought = (
                state.thought if self.thought_gate is None else self.thought_gate * state.thought
            )
            here = entering.to(h.device, non_blocking=True)
            thought = thought.where(here.unsqueeze(1), 0.0)
            h = torch.cat([h[:, :1] + thought.unsqueeze(1), h[:, 1:]], dim=1)
        decay = self._powers(section_length(h.shape[1]))
        lb, blocks = h.new_zeros(()), []
        for block, block_state in zip(self.layers, state.blocks, strict=True):
            if self.checkpointing and torch.is_grad_enabled():
                h, block_lb, block_state = checkpoint(
                    block, h, block_state, decay, use_reentrant=False, preserve_rng_state=False
                )
            else:
                h, block_lb, block_state = block(h, block_state, decay, probe)
            blocks.append(block_state)
            lb = lb + block_lb
        hidden = self.final_norm(h)
        position = state.position + h.shape[1]
        return hidden, lb, EngineState(tuple(blocks), hidden[:, -1].float().clone(), position)

    def _powers(self, length: int) -> DecayFactors:
        """Of the decays, which never change, so that they are made once for each length."""
        found = self._known_powers.get(length)
        if found is None or found.mask.device != self.log_decay.device:
            found = self._known_powers[length] = DecayFactors.powers(self.log_decay, length)
        return found

    def _check(self, vectors: Tensor, state: EngineState) -> None:
        d, B = self.config.d_model, state.batch_size
        if vectors.dim() != 3 or vectors.shape[-1] != d or vectors.shape[1] < 1:
            raise ValueError(
                f"vectors are {tuple(vectors.shape)}: must be (B, C, d_model) with d_model = {d}"
            )
        if vectors.shape[0] != B:
            raise ValueError(f"vectors have {vectors.shape[0]} rows, the state has {B} streams")
        if not vectors.is_floating_point():
            raise ValueError(
                f"vectors are {vectors.dtype}: must be floating point, as {torch.float32}"
            )
        if len(state.blocks) != len(self.blocks):
            raise ValueError(
                f"the state has {len(state.blocks)} blocks, the engine {len(self.blocks)}"
            )
        for i, (block, block_state) in enumerate(zip(self.layers, state.blocks, strict=True)):
            for name, shape in block.state_shapes.items():
                found = tuple(getattr(block_state, name).shape)
                if found != (B, *shape):
                    raise ValueError(
                        f"{name} of block {i} of the state is {found}, the engine's {(B, *shape)}"
                    )
        if vectors.device != state.device:
            raise ValueError(f"vectors are on {vectors.device}, the state on {state.device}")
