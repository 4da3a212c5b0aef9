"""What a front-end and a trainer must be: the two contracts. Importing this imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fractus_core.engine import ContinuousThoughtEngine, EngineState, Stream

Json = Mapping[str, Any]
"""A JSON object."""
Split = Literal["train", "validation", "all"]
"""`all` is one pass over everything, for evaluating on data that was never trained on."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of the training data that have nothing in common and are all of it."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"shard {self}: the first number must be from 0 to {self.count - 1}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """`0/4` is the first of four."""
        match = re.fullmatch(r"(\d+)/([1-9]\d*)", text)
        if match is None:
            raise ValueError(f"{text!r} is no shard: must be like 0/4, the first of four")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def bounds(self, length: int) -> tuple[int, int]:
        """Begin and end of this part of `length` items in a row; parts differ by 1 at most."""
        return length * self.index // self.count, length * (self.index + 1) // self.count


WHOLE = Shard()


@dataclass(frozen=True, slots=True)
class Batch:
    """One chunk of B streams."""

    observations: Tensor
    """(B, ...), what `Frontend.embed` takes."""
    targets: Tensor
    """(B, ...), what `Frontend.score` takes."""
    starts: Tensor
    """(B,) bool: rows that start anew, whose state is reset before this chunk."""

    def to(self, device: torch.device | str) -> Batch:
        return Batch(self.observations.to(device), self.targets.to(device), self.starts.to(device))


@dataclass(frozen=True, slots=True)
class Score:
    """How well hidden vectors answered."""

    loss: Tensor
    """The mean loss in nats, a scalar, differentiable."""
    weight: int
    """How many answers the mean is over."""
    correct: Tensor
    """(B,) bool: was the top answer at each row's last position right. Trains the confidence."""
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Name to (sum, weight), so that means over many chunks are exact. May be empty in training."""


class Source(Protocol):
    """A sequence of batches with a position that is saved and restored to the item.

    A training source goes on for ever, others make one pass.
    """

    fingerprint: str
    """Of the data as read: equal if and only if the same batches come out."""
    rows: int
    """B of its batches; a front-end may choose another than it was asked for. A source that makes
    one pass may have fewer in its last."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def cursor(self) -> Json:
        """Where the next batch starts."""

    def seek(self, cursor: Json) -> None:
        """Go to where `cursor` was taken."""


class Codec(Protocol):
    """What a `Stream` needs of a front-end."""

    def embed(self, observations: Tensor) -> Tensor:
        """(B, ...) to vectors (B, C, d_model)."""

    def answer(self, hidden: Tensor) -> Tensor:
        """Hidden (..., d_model) to logits (..., answers)."""


class Frontend(Codec, Protocol):
    """A `torch.nn.Module` between raw data and the engine's vectors; it never sees the engine."""

    uniform_loss: float
    """Nats per answer of a model that knows nothing: ln(vocabulary), ln(classes)."""

    @classmethod
    def infer_schema(cls, data: str, options: Json) -> Json:
        """What, besides options and weights, rebuilds it: a vocabulary, class names.

        Called once in the life of a run, and kept in its `run.json`.
        """

    def __init__(self, d_model: int, options: Json, schema: Json) -> None: ...

    def open(
        self,
        data: str,
        split: Split,
        *,
        batch_size: int,
        chunk_len: int,
        seed: int,
        shard: Shard = WHOLE,
    ) -> Source:
        """`shard` is the part of the training data to read; other splits are read whole.

        Raises:
            FractusError: the data is missing, empty, too short or unreadable.
        """

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        """Hidden (B, C, d_model) against targets.

        `last` scores only each row's last position, where each position has an answer.
        """

    def illustrate(self, stream: Stream, source: Source, directory: Path, seed: int) -> str:
        """Show what it can do, as text, at each evaluation; pictures go into `directory`.

        `source` is a pass over held-out data of its own.
        """


@runtime_checkable
class Resampler(Protocol):
    """What a front-end adds whose answers are observations too, for scheduled sampling."""

    def resample(
        self,
        observations: Tensor,
        hidden: Tensor,
        *,
        probability: float,
        temperature: float,
        generator: torch.Generator,
    ) -> Tensor:
        """A copy of `observations`, some of which are the model's own.

        Each but the first of a row is, with `probability`, a sample from the answer to the hidden
        vector before it, of `hidden` (B, C, d_model). `generator` is on the CPU.
        """


@dataclass(slots=True)
class Lane:
    """One front-end's share of a run: its data, and its streams' state, which the trainer moves.

    Where torchrun started several processes, both are of the rows of this one.
    """

    name: str
    frontend: Frontend
    source: Source
    state: EngineState
    share: int = 1
    """Optimizer steps in each round; see `take_turns`."""


def take_turns(lanes: Sequence[Lane]) -> list[Lane]:
    """The order of a round's steps: each lane `share` times, as evenly as can be."""
    turns = [((turn + 0.5) / lane.share, lane) for lane in lanes for turn in range(lane.share)]
    return [lane for _, lane in sorted(turns, key=lambda turn: turn[0])]


@dataclass(frozen=True, slots=True)
class Step:
    """What a trainer reports after each optimizer step."""

    lane: str
    tokens: int
    """Vectors that the engine read in this step."""
    loss: float
    """Mean over the step in nats, without the auxiliary losses."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What else is worth a column in `metrics.jsonl`: learning rate, gradient norm, lb, ..."""


class Trainer(Protocol):
    """Decides how the weights move: owns device, precision, optimizer and loop, nothing else.

    Checkpoints, metrics, evaluation, the budget and interruption are the framework's.
    """

    options: Json
    """As given, with what `__init__` and `prepare` decided; a resumed run is given these."""
    batch_size: int
    """Rows, of all processes together."""
    chunk_len: int

    def __init__(self, options: Json, *, seed: int) -> None:
        """Raises `FractusError` if this machine cannot do what is asked. Made before any data is
        read; sizes that are chosen by what fits may change until `prepare`."""

    def prepare(self, engine: ContinuousThoughtEngine, lanes: list[Lane]) -> None:
        """Place the modules on the device and make the optimizer."""

    def train(self, progress: Callable[[], float]) -> Iterator[Step]:
        """Endless; yields after each optimizer step. `progress()` is the budget spent, 0 to 1."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dicts and lists of tensors and JSON values: optimizer, generators, counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class Preflight(Protocol):
    """What a trainer adds that tells how much memory it will take."""

    def preflight(
        self, build: Callable[[], tuple[ContinuousThoughtEngine, list[Frontend]]]
    ) -> list[str]:
        """Called before anything is made; may still change `batch_size`. Returns lines to show.

        `build` makes modules as they will be; call it where tensors take no memory.

        Raises:
            FractusError: it does not fit.
        """
