"""Checkpoints of the original research code, loaded as streams that give the original's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fractus_core.api import (
    ContinuousThoughtEngine,
    EngineConfig,
    EngineState,
    FractusError,
    Stream,
)
from fractus_text.embedding import TiedEmbedding

PREFIX = "_orig_mod."
"""What `torch.compile` put before every name."""
UNUSED = ("last_lb_loss", "salience_head.weight", "salience_head.bias")
"""Held no weight that any output depended on."""
DEFAULTS = {"top_k": 2, "d_head": 64}
"""What the original assumed where a checkpoint's config is silent and no shape tells."""


def load_original(
    path: str | Path, *, batch_size: int = 1, gate_temperature: float | None = None
) -> Stream:
    """A stream of `batch_size` rows over a checkpoint `{"model_state": ..., "config": ...}`.

    Sizes are read off the tensors. The carried state of the checkpoint is kept where it has
    `batch_size` rows; otherwise the streams begin anew. Unpickles with `weights_only=True`.

    Args:
        gate_temperature: of the gates, which the original did not store with the weights; None
            takes `gate_temp` from the checkpoint's config.

    Raises:
        FractusError: if the file is not such a checkpoint; every tensor must be accounted for.
    """
    tensors, config = _read(Path(path))
    taken = _Taken(tensors, path)
    sizes = _sizes(taken, config)
    temperature = gate_temperature if gate_temperature is not None else config.get("gate_temp")
    if temperature is None:
        raise FractusError(f"{path} does not say its gate temperature: pass gate_temperature=")
    engine = ContinuousThoughtEngine(
        EngineConfig.reference(**sizes, gate_temperature=float(temperature))
    )
    embedding = TiedEmbedding(*taken("observe.weight").shape)
    state = engine.initial_state(batch_size)

    taken.skip(*(name for name in UNUSED if name in tensors))
    embedding.load_state_dict({"weight": taken("observe.weight")})
    if "output_head.weight" in tensors and not torch.equal(
        taken("output_head.weight"), embedding.weight
    ):
        raise FractusError(f"{path}: output_head.weight differs from observe.weight; they are one")
    engine.load_state_dict(_engine_weights(taken, sizes))
    for i, block in enumerate(engine.layers):
        phases = taken(f"blocks.{i}.moe.expert_phases")
        block.experts.directions.copy_(torch.stack([phases.cos(), phases.sin()]))
        block.attention.level_offsets.copy_(taken(f"blocks.{i}.attn.level_offsets"))
    carried = _carried_state(taken, state)
    taken.finish()
    return Stream(engine, embedding, state=state if carried is None else carried)


class _Taken:
    """Hands out the tensors of a checkpoint and remembers which."""

    def __init__(self, tensors: Mapping[str, Tensor], path: str | Path) -> None:
        self.tensors, self.path, self.left = tensors, path, set(tensors)

    def __call__(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise FractusError(f"{self.path} has no tensor {name!r}: not an original checkpoint")
        self.left.discard(name)
        return self.tensors[name]

    def skip(self, *names: str) -> None:
        self.left.difference_update(names)

    def finish(self) -> None:
        if self.left:
            raise FractusError(
                f"{self.path} has tensors with no place: {', '.join(sorted(self.left))}"
            )


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        tensors = {k.removeprefix(PREFIX): v.float() for k, v in checkpoint["model_state"].items()}
        return tensors, dict(checkpoint.get("config") or {})
    except FileNotFoundError:
        raise FractusError(f"{path}: no such file") from None
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        raise FractusError(f"{path} is not an original checkpoint: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _sizes(taken: _Taken, config: Mapping[str, Any]) -> dict[str, Any]:
    """`EngineConfig` fields, from shapes where shapes tell."""
    layers = {name.split(".")[1] for name in taken.tensors if name.startswith("blocks.")}
    d_model = taken("observe.weight").shape[1]
    N, coupling_rank = taken("blocks.0.kuramoto.coupling_u").shape
    n_experts, d_ff = taken("blocks.0.moe.b1").shape
    low_rank = "blocks.0.moe.U1" in taken.tensors
    return {
        "d_model": d_model,
        "n_heads": config.get("n_heads") or d_model // config.get("d_head", DEFAULTS["d_head"]),
        "n_layers": len(layers),
        "n_levels": len(taken("blocks.0.attn.level_logits")),
        "n_experts": n_experts,
        "top_k": config.get("top_k", DEFAULTS["top_k"]),
        "expert_rank": taken("blocks.0.moe.U1").shape[2] if low_rank else 0,
        "d_ff": d_ff,
        "n_oscillators": N,
        "coupling_rank": coupling_rank,
    }


def _engine_weights(taken: _Taken, sizes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The engine's state dict. The original multiplied from the right (x @ w), Linear does not."""
    weights: dict[str, Tensor] = {}
    for i in range(sizes["n_layers"]):
        old, new = f"blocks.{i}.", f"blocks.{i}."
        weights |= {
            new + "attention.in_proj.weight": taken(old + "attn.w_qkv").mT.flatten(0, 1),
            new + "attention.in_proj.bias": taken(old + "attn.b_qkv").flatten(),
            new + "attention.out_proj.weight": taken(old + "attn.w_out").mT,
            new + "attention.out_proj.bias": taken(old + "attn.b_out"),
            new + "attention.level_logits": taken(old + "attn.level_logits"),
        }
        for ours, theirs in (("attention", "attn"), ("phases", "kur"), ("experts", "moe")):
            for part in ("weight", "bias"):
                weights[f"{new}norm_{ours}.{part}"] = taken(f"{old}norm_{theirs}.{part}")
        for name in ("omega", "coupling_u", "coupling_lambda"):
            weights[f"{new}phases.{name}"] = taken(f"{old}kuramoto.{name}")
        for ours, tensor in _expert_weights(taken, old + "moe.", sizes["expert_rank"]).items():
            weights[f"{new}experts.experts.{ours}"] = tensor
    for part in ("weight", "bias"):
        weights[f"confidence_head.{part}"] = taken(f"confidence_head.{part}")
    return weights


def _expert_weights(taken: _Taken, prefix: str, rank: int) -> dict[str, Tensor]:
    biases = {name: taken(prefix + name) for name in ("b1", "b2")}
    if not rank:
        return biases | {"W1": taken(prefix + "w1"), "W2": taken(prefix + "w2")}
    return biases | {
        "V1": taken(prefix + "V1"),
        "U1": taken(prefix + "U1").mT,
        "V2": taken(prefix + "V2"),
        "U2": taken(prefix + "U2").mT,
        "scale1": taken(prefix + "scale1").squeeze(-1),
        "scale2": taken(prefix + "scale2").squeeze(-1),
    }


def _carried_state(taken: _Taken, state: EngineState) -> EngineState | None:
    """The checkpoint's state, if it has as many rows as `state`; the names are taken either way."""
    B, _, H, D, _ = state.blocks[0].S.shape
    blocks = []
    for i in range(len(state.blocks)):
        prefix = f"blocks.{i}."
        taken.skip(prefix + "kuramoto_phases")  # written, never read
        S, z = taken(prefix + "attn_S"), taken(prefix + "attn_z")
        if S.shape[0] == B:
            heads = S.view(B, H, D, H, D).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
            blocks.append({"S": heads.unsqueeze(1).contiguous(), "z": z.view(B, 1, H, D)})
    thought = taken("thought_state")
    if len(blocks) < len(state.blocks) or thought.shape[0] != B:
        return None
    carried = state.state_dict()
    for block, sums in zip(carried["blocks"], blocks, strict=True):
        block.update(sums)
    return EngineState.from_state_dict(carried | {"thought": thought.view(B, H * D)})
