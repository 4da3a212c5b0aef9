"""All that a plugin may import, on one page. Importing it imports no torch.

A plugin is a module named by an entry point of the group `fractus`; it implements some of the hooks
in `fractus_core.plugins.hooks` and returns specs. The classes that the specs name are imported only
when a user selects them, and satisfy the protocols in `fractus_core.contract`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fractus_core.contract import (
    Batch,
    Frontend,
    Json,
    Lane,
    Score,
    Source,
    Split,
    Step,
    Trainer,
)
from fractus_core.errors import FractusError
from fractus_core.plugins.hooks import hookimpl
from fractus_core.plugins.specs import (
    API_VERSION,
    CommandSpec,
    FrontendSpec,
    Option,
    TrainerSpec,
)

if TYPE_CHECKING:
    from fractus_core.engine import ContinuousThoughtEngine, EngineConfig, EngineState
    from fractus_core.engine.stream import Stream

# These need torch, so they are imported at first use.
_LAZY = {
    "ContinuousThoughtEngine": "fractus_core.engine",
    "EngineConfig": "fractus_core.engine",
    "EngineState": "fractus_core.engine",
    "Stream": "fractus_core.engine.stream",
}

__all__ = [
    "API_VERSION",
    "Batch",
    "CommandSpec",
    "ContinuousThoughtEngine",
    "EngineConfig",
    "EngineState",
    "FractusError",
    "Frontend",
    "FrontendSpec",
    "Json",
    "Lane",
    "Option",
    "Score",
    "Source",
    "Split",
    "Step",
    "Stream",
    "Trainer",
    "TrainerSpec",
    "hookimpl",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
