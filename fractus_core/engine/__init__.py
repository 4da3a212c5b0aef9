"""The Continuous Thought Engine: a recurrent, sparse network whose state is a value."""

from fractus_core.engine.config import EngineConfig
from fractus_core.engine.engine import ContinuousThoughtEngine
from fractus_core.engine.presets import PRESETS
from fractus_core.engine.state import EngineState

__all__ = ["PRESETS", "ContinuousThoughtEngine", "EngineConfig", "EngineState"]
