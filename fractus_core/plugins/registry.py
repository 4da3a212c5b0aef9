"""The installed front-ends, trainers and commands, looked up by name and loaded when asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from fractus_core.errors import FractusError, describe
from fractus_core.plugins.lifecycle import Lifecycle
from fractus_core.plugins.records import KINDS, Entry, Plugin, Problem, S, normalise
from fractus_core.plugins.specs import CommandSpec, FrontendSpec, Spec, TrainerSpec


@dataclass(frozen=True, slots=True)
class Registry:
    """What is installed. Made by `fractus_core.plugins.discovery.discover`."""

    plugins: tuple[Plugin, ...]
    """Those that could be loaded."""
    frontends: tuple[Entry[FrontendSpec], ...]
    trainers: tuple[Entry[TrainerSpec], ...]
    commands: tuple[Entry[CommandSpec], ...]
    problems: tuple[Problem, ...]
    hook: Lifecycle
    """Calls the lifecycle hooks: `registry.hook.fractus_step(directory, number, step)`."""

    def frontend(self, name: str) -> Entry[FrontendSpec]:
        """By `name` or `distribution:name`; raises `FractusError` if there is none."""
        return self._find(FrontendSpec, self.frontends, name)

    def trainer(self, name: str) -> Entry[TrainerSpec]:
        """By `name` or `distribution:name`; raises `FractusError` if there is none."""
        return self._find(TrainerSpec, self.trainers, name)

    def command(self, name: str) -> Entry[CommandSpec]:
        """By `name` or `distribution:name`; raises `FractusError` if there is none."""
        return self._find(CommandSpec, self.commands, name)

    def _find(self, spec_type: type[Spec], entries: tuple[Entry[S], ...], name: str) -> Entry[S]:
        distribution, _, bare = name.rpartition(":")
        distribution = normalise(distribution)
        for entry in entries:
            if name == entry.name or (distribution, bare) == (entry.distribution, entry.spec.name):
                return entry
        kind = KINDS[spec_type]
        namesakes = [entry.qualified for entry in entries if entry.spec.name == name]
        if namesakes:
            raise FractusError(
                f"{kind} {name!r} is a name that several plugins use; "
                f"ask for {' or '.join(map(repr, namesakes))}"
            )
        for problem in self.problems:
            if problem.explains(distribution, bare):
                raise FractusError(f"there is no {kind} {name!r}: {problem}")
        known = [entry.name for entry in entries]
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise FractusError(
            f"there is no {kind} {name!r}; {hint}installed: {', '.join(known) or 'none'}"
        )


def load_target(entry: Entry[Spec]) -> Any:
    """Import what `entry.spec.target` names; raises `FractusError` that says why it cannot be."""
    spec = entry.spec
    who = f"{entry.kind} {entry.name!r} of {entry.plugin}"
    module_name, _, attribute = spec.target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (KeyboardInterrupt, FractusError):
        raise
    except BaseException as error:  # SystemExit too: a plugin's import must not end the program
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            reason = f"its target {spec.target!r} names no module: {missing!r} does not exist"
        elif isinstance(error, ImportError) and spec.extras:
            package = f"{entry.distribution}[{','.join(spec.extras)}]"
            reason = f"{describe(error)}; pip install {package!r}"
        else:
            reason = f"importing {module_name!r} failed: {describe(error)}"
        raise FractusError(f"{who} cannot be used: {reason}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise FractusError(
            f"{who} cannot be used: its target {spec.target!r} names an attribute that "
            f"{module_name!r} does not have"
        ) from error
