"""The records in which plugins announce what they add. Light: nothing is imported to make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

API_VERSION = 1
"""The version of `fractus_core.api`. A spec that asks for another is reported and left out."""

Direction = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One typed option; `--text.tokenizer` is the option `tokenizer` of the front-end `text`."""

    name: str
    default: bool | int | float | str
    """Its type is the option's type."""
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    """Bounds of a number, both inclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What every record has."""

    name: str
    summary: str
    target: str
    """`package.module:attribute`, imported only when it is selected."""
    extras: tuple[str, ...] = ()
    """Extras of its distribution that the target needs; named to the user when its import fails."""
    api: int = API_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSpec(Spec):
    """Announces a `Frontend` class."""

    options: tuple[Option, ...] = ()
    default_data: str = ""
    """What `--data` is when the user names none; empty if it must be named."""
    emits: str
    """The kind of its observations, for trainers that accept only some: `tokens`, `images`, ..."""
    metrics: Mapping[str, Direction] = field(default_factory=dict)
    """The names in `Score.metrics`, and which direction of each is better."""
    uses: tuple[str, ...] = ()
    """Commands to try on a finished run, `{run}` standing for its directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec(Spec):
    """Announces a `Trainer` class."""

    options: tuple[Option, ...] = ()
    accepts: tuple[str, ...] = ()
    """The kinds of observations it can train on; empty means any."""
    devices: tuple[str, ...] = ("cpu",)
    preset: str = ""
    """The size of the engine where the user names none; empty: the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec(Spec):
    """Announces a click command or group, added to `fractus`."""
