"""What discovery knows about the installed plugins, as immutable records."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fractus_core.plugins.specs import CommandSpec, FrontendSpec, Spec, TrainerSpec

S = TypeVar("S", bound=Spec, covariant=True)

KINDS: dict[type[Spec], str] = {
    FrontendSpec: "front-end",
    TrainerSpec: "trainer",
    CommandSpec: "command",
}
"""What users call that which a spec announces."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin module, as its distribution's entry point names it."""

    distribution: str
    """Normalised as package indexes do: lower case, words joined by single dashes."""
    version: str
    key: str
    """The name of the entry point."""
    module: str
    hooks: tuple[str, ...] = field(default=(), compare=False)
    """The hooks it implements; known once it is loaded."""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True, slots=True)
class Entry(Generic[S]):
    """One thing that a plugin adds."""

    spec: S
    plugin: Plugin
    name: str
    """How to ask for it, and how its options start: the spec's own name where that means this entry
    and no other, else the qualified name."""

    @property
    def kind(self) -> str:
        return KINDS[type(self.spec)]

    @property
    def distribution(self) -> str:
        return self.plugin.distribution

    @property
    def version(self) -> str:
        return self.plugin.version

    @property
    def module(self) -> str:
        return self.plugin.module

    @property
    def qualified(self) -> str:
        """`distribution:name`, which is unique and always understood."""
        return f"{self.distribution}:{self.spec.name}"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a plugin, as one line that names distribution, version and reason."""

    plugin: Plugin
    text: str
    """Goes on from the plugin's name: `ignored: ...`, `adds front-end 'x', ignored: ...`."""
    lost: str = ""
    """The name that cannot be asked for because of it; `*` for all that the plugin would add."""
    error: BaseException | None = field(default=None, compare=False)
    """For a traceback, should somebody want one."""

    def explains(self, distribution: str, name: str) -> bool:
        """Whether it is why `distribution:name` is not there; `distribution` may be empty."""
        if distribution:
            return distribution == self.plugin.distribution and self.lost in (name, "*")
        return name == (self.plugin.key if self.lost == "*" else self.lost)

    def __str__(self) -> str:
        return f"plugin {self.plugin} {self.text}"


def normalise(distribution: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()
