"""The Continuous Thought Engine: a recurrent, sparse network whose state is a value.

Importing this imports no torch, so that the command line can name presets; the classes that need it
are imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fractus_core.engine.config import EngineConfig
from fractus_core.engine.presets import PRESETS

if TYPE_CHECKING:
    from fractus_core.engine.engine import ContinuousThoughtEngine
    from fractus_core.engine.state import EngineState
    from fractus_core.engine.stream import Stream

__all__ = ["PRESETS", "ContinuousThoughtEngine", "EngineConfig", "EngineState", "Stream"]

_LAZY = {"ContinuousThoughtEngine": "engine", "EngineState": "state", "Stream": "stream"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
