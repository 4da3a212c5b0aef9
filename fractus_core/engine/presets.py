"""The ladder of sizes, from a toy to a billion parameters. Imports no torch."""

from __future__ import annotations

from typing import Any

_COLUMNS = ("d_model", "n_heads", "n_layers", "n_experts", "expert_rank", "d_ff")
_SMALL = {"n_oscillators": 8, "coupling_rank": 4}
_LARGE = {"n_oscillators": 16, "coupling_rank": 8}


def _sizes(*values: int) -> dict[str, Any]:
    return dict(zip(_COLUMNS, values, strict=True))


_STAGE4 = _sizes(1280, 20, 16, 128, 64, 2048) | _LARGE

PRESETS: dict[str, dict[str, Any]] = {
    "stage0": _sizes(128, 2, 2, 4, 32, 128) | _SMALL,
    "stage1": _sizes(256, 4, 4, 8, 32, 256) | _SMALL,
    "stage2": _sizes(512, 8, 8, 16, 64, 512) | _SMALL,
    "stage3": _sizes(768, 12, 12, 32, 64, 768) | _SMALL,
    "stage4": _STAGE4,
    "1b": _STAGE4,
}
"""Name to `EngineConfig` fields: `EngineConfig(**PRESETS["stage1"])`."""
