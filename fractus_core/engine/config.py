"""The sizes and dynamics of an engine. Imports no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

Dynamics = Literal["default", "reference"]
Decay = Literal["golden", "none"]
PhaseDrive = Literal["projection", "mean"]
Routing = Literal["token", "chunk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides an engine's parameters and equations.

    Raises `ValueError` for values that do not fit, naming the field, its value and what it may be.
    """

    d_model: int = 128
    """Width of the residual stream."""
    n_heads: int = 2
    n_layers: int = 2
    n_levels: int = 2
    """Levels of the fractal attention, each with its own feature map and decays."""
    n_experts: int = 4
    top_k: int = 2
    """Experts that each token visits."""
    expert_rank: int = 32
    """Rank of the experts' matrices; 0 makes them dense."""
    d_ff: int = 128
    """Hidden width of an expert."""
    n_oscillators: int = 8
    coupling_rank: int = 4
    gate_kappa: float = 4.0
    """Concentration of the von Mises gates."""
    gate_temperature: float = 1.0

    decay: Decay = "golden"
    """Time constants of the attention sums: golden-ratio spaced, or no forgetting at all."""
    decay_heads: int = 0
    """Heads whose time constants differ; those after them repeat theirs. 0: all. A grown engine's
    heads keep the time constants of the heads that they were copied from."""
    output_gate: bool = True
    """Normalise attention per head and gate it by the input."""
    token_shift: bool = True
    """Mix each token with its predecessor, per channel, before attention and experts."""
    phase_drive: PhaseDrive = "projection"
    """What starts the phases: a learned projection, or the mean (which is blind at first)."""
    routing: Routing = "token"
    """Each token by its own phases, or a whole chunk by its last token's (which looks ahead)."""
    thought_stride: int = 128
    """The thought enters where the stream position is a multiple of this; 0: never."""
    final_norm: bool = True
    dynamics: Dynamics = "default"
    """`reference` reproduces the original research code; see `EngineConfig.reference`."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_type(field.name, getattr(self, field.name), type(field.default))
        for name in ("d_model", "n_heads", "n_layers", "n_levels", "n_experts", "top_k", "d_ff"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("n_oscillators", "coupling_rank"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("expert_rank", "thought_stride", "decay_heads"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        for name in ("d_model", "d_ff", "expert_rank"):  # grouped products want aligned rows
            self._require(name, getattr(self, name) % 8 == 0, "a multiple of 8")
        for name in ("gate_kappa", "gate_temperature"):
            self._require(name, 0 < getattr(self, name) < float("inf"), "positive and finite")
        for name, choices in _CHOICES.items():
            self._require(name, getattr(self, name) in choices, "one of " + ", ".join(choices))
        self._require(
            "d_model", self.d_model % self.n_heads == 0, f"a multiple of n_heads = {self.n_heads}"
        )
        self._require(
            "decay_heads", self.decay_heads <= self.n_heads, f"at most n_heads = {self.n_heads}"
        )
        self._require(
            "top_k", self.top_k <= self.n_experts, f"at most n_experts = {self.n_experts}"
        )
        if self.dynamics == "reference":
            for name, value in _REFERENCE.items():
                fits = getattr(self, name) == value
                self._require(name, fits, f"{value!r} in the reference dynamics")

    def _require(self, name: str, satisfied: bool, allowed: str) -> None:
        if not satisfied:
            raise ValueError(f"{name} = {getattr(self, name)!r}: must be {allowed}")

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def gate_sharpness(self) -> float:
        """kappa / T."""
        return self.gate_kappa / self.gate_temperature

    @classmethod
    def reference(cls, **sizes: Any) -> Self:
        """The dynamics of the original research code, so that its checkpoints give its numbers.

        Phases from the mean, unprojected and uncarried; a chunk routed by its last token; no decay,
        gate, shift or final norm; the thought added to the first position of every call.
        """
        return cls(**{"dynamics": "reference", **_REFERENCE, **sizes})

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_REFERENCE: dict[str, Any] = {
    "decay": "none",
    "output_gate": False,
    "token_shift": False,
    "phase_drive": "mean",
    "routing": "chunk",
    "thought_stride": 0,
    "final_norm": False,
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "decay": get_args(Decay),
    "phase_drive": get_args(PhaseDrive),
    "routing": get_args(Routing),
    "dynamics": get_args(Dynamics),
}


def check_type(name: str, value: object, expected: type) -> None:
    """Raise `ValueError` unless `value` is an `expected` (an int will do for a float)."""
    # bool is an int to Python, but `n_heads = true` is a mistake.
    fits = isinstance(value, expected) and (expected is bool or not isinstance(value, bool))
    if not fits and not (expected is float and type(value) is int):
        raise ValueError(f"{name} = {value!r}: must be of type {expected.__name__}")
