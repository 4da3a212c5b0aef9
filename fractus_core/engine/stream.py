"""An engine, a front-end and a state, for people at a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fractus_core.engine.compiling import compile_tick
from fractus_core.engine.engine import ContinuousThoughtEngine
from fractus_core.engine.state import EngineState

if TYPE_CHECKING:
    from fractus_core.contract import Codec


class Stream:
    """B streams that are read and answer tick by tick. Its `state` may be read and replaced."""

    def __init__(
        self,
        engine: ContinuousThoughtEngine,
        frontend: Codec,
        *,
        batch_size: int = 1,
        state: EngineState | None = None,
    ) -> None:
        self.engine = engine
        self.frontend = frontend
        self.state = engine.initial_state(batch_size) if state is None else state
        self._tick = self._eager_tick

    @torch.no_grad()
    def compile(self) -> None:
        """Have `torch.compile` make one program of a tick, now, for this number of streams.

        Thinking, a tick without input, is another program, made when it is wanted.

        Raises:
            FractusError: there is no C++ compiler.
        """
        self._eager_tick(None, self.state)  # what is made once is made before: the program has it
        self._tick = compile_tick(self._eager_tick)
        self._tick(torch.zeros_like(self.state.thought), self.state)

    def tick_chunk_train(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Read observations (B, ...), differentiably: logits (B, C, answers), scalar lb loss.

        The state is carried on without its graph: gradients reach back to the chunk's start.
        """
        vectors = self._embed(observations)
        hidden, lb_loss, state = self.engine.tick_chunk_train(vectors, self.state)
        self.state = state.detach()
        return self.frontend.answer(hidden), lb_loss

    @torch.no_grad()
    def read(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Read observations of any length; answer at the end only, as `tick` does."""
        vectors = self._embed(observations)
        hidden, state = self.engine.tick_chunk(vectors, self.state)
        self.state = state.map(_as_new)  # as ticks leave it, and a program expects it
        last = hidden[:, -1]
        return self.frontend.answer(last), self.engine.confidence_logit(last).sigmoid()

    def tick(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Read one observation per stream, (B,): logits (B, answers) and confidence (B,).

        Raises:
            ValueError: if an observation is more than one vector long.
        """
        with torch.no_grad():
            vectors = self._embed(observation.unsqueeze(1))
        if vectors.shape[1] != 1:
            raise ValueError(
                f"an observation of {vectors.shape[1]} vectors: a tick reads 1; use read"
            )
        return self.tick_vec(vectors[:, 0])

    @torch.no_grad()
    def tick_vec(self, vector: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read one vector per stream, (B, d_model), or none: logits and confidence as `tick`."""
        logits, confidence, self.state = self._tick(vector, self.state)
        return logits, confidence

    def think(self, *, confidence: float = 0.9, max_ticks: int = 16) -> tuple[Tensor, Tensor]:
        """Tick with no input until every stream is at least so confident, or `max_ticks` are over.

        Returns logits (B, answers) and confidence (B,), as `tick`.
        """
        if max_ticks < 1:
            raise ValueError(f"max_ticks = {max_ticks}: must be at least 1")
        for _ in range(max_ticks):
            logits, reached = self.tick_vec(None)
            if (reached >= confidence).all():
                break
        return logits, reached

    def reset(self, rows: Tensor | None = None) -> None:
        """Begin the streams anew: all, or those where `rows` ((B,) bool) is true."""
        self.state = self.state.reset(rows)

    def peek(self) -> Self:
        """A stream in the same state, to probe without disturbing this one."""
        twin = type(self)(self.engine, self.frontend, state=self.state.clone())
        twin._tick = self._tick
        return twin

    def _eager_tick(
        self, vector: Tensor | None, state: EngineState
    ) -> tuple[Tensor, Tensor, EngineState]:
        hidden, confidence, state = self.engine.tick_vec(vector, state)
        return self.frontend.answer(hidden), confidence, state

    def _embed(self, observations: Tensor) -> Tensor:
        """Whatever device they are on."""
        return self.frontend.embed(observations.to(self.engine.log_decay.device))


def _as_new(x: Tensor) -> Tensor:
    """Contiguous, and where there is but one row its stride, too, is that of a new tensor."""
    return x.contiguous().view(-1).view(x.shape)
