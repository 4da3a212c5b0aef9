"""All that a plugin may import, on one page. Importing it imports no torch.

A plugin is a module named by an entry point of the group `fractus`; it implements some of the hooks
in `fractus_core.plugins.hooks` and returns specs. The classes that the specs name are imported only
when a user selects them, and satisfy the protocols in `fractus_core.contract`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fractus_core import engine
from fractus_core.allocator import keep_freed_memory
from fractus_core.cli.numbers import finite
from fractus_core.contract import (
    WHOLE,
    Batch,
    Frontend,
    Json,
    Lane,
    Resampler,
    Score,
    Shard,
    Source,
    Split,
    Step,
    Trainer,
    take_turns,
)
from fractus_core.data.cache import (
    Cached,
    cache_directory,
    cached,
    content_hashes,
    write_atomically,
)
from fractus_core.data.hub import import_extra, load_hub_dataset
from fractus_core.data.progress import Progress, progress_bar
from fractus_core.engine import EngineConfig
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
    from fractus_core.engine import ContinuousThoughtEngine, EngineState, Stream
    from fractus_core.runs import ranks, sharded
    from fractus_core.runs.opening import open_run
    from fractus_core.runs.refit import Refit

__all__ = [
    "API_VERSION",
    "WHOLE",
    "Batch",
    "Cached",
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
    "Progress",
    "Refit",
    "Resampler",
    "Score",
    "Shard",
    "Source",
    "Split",
    "Step",
    "Stream",
    "Trainer",
    "TrainerSpec",
    "cache_directory",
    "cached",
    "content_hashes",
    "finite",
    "hookimpl",
    "import_extra",
    "keep_freed_memory",
    "load_hub_dataset",
    "open_run",
    "progress_bar",
    "ranks",
    "sharded",
    "take_turns",
    "write_atomically",
]


def __getattr__(name: str) -> Any:
    # What needs torch is imported at first use.
    if name == "open_run":
        return importlib.import_module("fractus_core.runs.opening").open_run
    if name in ("ranks", "sharded"):
        return importlib.import_module(f"fractus_core.runs.{name}")
    if name == "Refit":
        return importlib.import_module("fractus_core.runs.refit").Refit
    if name in ("ContinuousThoughtEngine", "EngineState", "Stream"):
        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
