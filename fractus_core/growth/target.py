"""What an engine is to become, in steps of one kind each. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from fractus_core.engine import EngineConfig
from fractus_core.errors import FractusError

KINDS: dict[str, tuple[str, ...]] = {
    "oscillators": ("n_oscillators", "coupling_rank"),
    "rank": ("expert_rank",),
    "d_ff": ("d_ff",),
    "experts": ("n_experts",),
    "width": ("d_model", "n_heads"),
    "depth": ("n_layers",),
}
"""In the order in which they are done, each with the fields that it changes. Depth comes last: its
blocks are new, and nothing in them need be copied."""
SIZES = tuple(field for fields in KINDS.values() for field in fields)


def target(old: EngineConfig, fields: Mapping[str, Any]) -> EngineConfig:
    """`old` with other `fields`.

    Raises:
        FractusError: it cannot grow to that.
    """
    if old.dynamics == "reference":
        raise FractusError("engines of the reference dynamics do not grow: train a default one")
    for name, value in fields.items():
        was = getattr(old, name)
        if name not in SIZES and value != was:
            raise FractusError(
                f"{name} is {was!r} and cannot become {value!r}: what can grow is "
                f"{', '.join(SIZES)}"
            )
        if name in SIZES and value < was:
            raise FractusError(f"{name} is {was} and cannot shrink to {value}: set it to {was}")
    try:
        new = dataclasses.replace(old, **fields)
        if new.n_heads > old.n_heads:
            new = dataclasses.replace(new, decay_heads=old.decay_heads or old.n_heads)
    except ValueError as error:
        raise FractusError(str(error)) from error
    if new.d_head != old.d_head:
        raise FractusError(
            f"d_model {new.d_model} / n_heads {new.n_heads} makes heads of {new.d_head}, and they "
            f"are of {old.d_head}: n_heads grows with d_model, by the same factor"
        )
    if new.d_model > old.d_model and not old.final_norm:
        raise FractusError("an engine without final_norm cannot grow in d_model")
    if bool(new.expert_rank) != bool(old.expert_rank):
        raise FractusError(
            f"expert_rank is {old.expert_rank} and cannot become {new.expert_rank}: dense experts "
            "stay dense"
        )
    if new.n_oscillators % old.n_oscillators:
        raise FractusError(
            f"n_oscillators is {old.n_oscillators} and cannot become {new.n_oscillators}: it must "
            "be a multiple, for the mean phase stays if all are doubled"
        )
    if new.n_oscillators > old.n_oscillators and old.phase_drive != "projection":
        raise FractusError("n_oscillators cannot grow with phase_drive 'mean': it fixes the phases")
    return new


def steps(old: EngineConfig, new: EngineConfig) -> Iterator[tuple[str, EngineConfig, EngineConfig]]:
    """The kinds of growth from `old` to `new`, each with the engine before and after it."""
    before = old
    for kind, fields in KINDS.items():
        changed = {field: getattr(new, field) for field in fields}
        if kind == "width":
            changed["decay_heads"] = new.decay_heads
        after = dataclasses.replace(before, **changed)
        if after != before:
            yield kind, before, after
        before = after


def changes(old: EngineConfig, new: EngineConfig) -> dict[str, list[int]]:
    """The sizes that differ, each before and after."""
    return {
        field: [getattr(old, field), getattr(new, field)]
        for field in SIZES
        if getattr(old, field) != getattr(new, field)
    }
