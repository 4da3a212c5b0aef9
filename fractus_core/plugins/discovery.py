"""From installed distributions to a `Registry`: find, load, collect, name.

A plugin that is broken, incompatible or a duplicate becomes a `Problem`, never an exception.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import metadata
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any, cast

import pluggy

from fractus_core.errors import FractusError, describe
from fractus_core.plugins import hooks
from fractus_core.plugins.lifecycle import Lifecycle, callers
from fractus_core.plugins.records import KINDS, Entry, Plugin, Problem, S, normalise
from fractus_core.plugins.registry import Registry
from fractus_core.plugins.specs import CommandSpec, FrontendSpec, Spec, TrainerSpec
from fractus_core.plugins.validation import faults

OWN = "fractus"
"""The distribution whose bare names no other can take."""
_IMPORTS_TORCH = (
    "makes every command slow: its plugin module imports torch; "
    "import that in the modules that its targets name"
)


def discover(
    distributions: Iterable[Distribution] | None = None, builtins: Iterable[CommandSpec] = ()
) -> Registry:
    """Everything that `distributions` (default: the installed ones) add to Fractus.

    `builtins` are commands of Fractus itself, which no plugin can replace.
    """
    found, unreadable = find(metadata.distributions() if distributions is None else distributions)
    manager = pluggy.PluginManager(hooks.GROUP)
    manager.add_hookspecs(hooks)
    problems = [*unreadable]
    loaded: dict[str, Plugin] = {}
    for plugin in found:
        had_torch = "torch" in sys.modules
        try:
            loaded[_id(plugin)] = load(manager, plugin)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: no import may end the program
            problems.append(Problem(plugin, f"ignored: {describe(error)}", "*", error))
        else:
            if not had_torch and "torch" in sys.modules:
                problems.append(Problem(plugin, _IMPORTS_TORCH))

    frontends, frontend_problems = collect(manager, loaded, "fractus_frontends", FrontendSpec)
    trainers, trainer_problems = collect(manager, loaded, "fractus_trainers", TrainerSpec)
    commands, command_problems = collect(manager, loaded, "fractus_commands", CommandSpec)
    problems += [*frontend_problems, *trainer_problems, *command_problems]

    # Options begin with the name of their front-end or trainer, so the two share one space of names
    selectable, selectable_problems = name_entries([*frontends, *trainers])
    invocable, invocable_problems = name_entries([*builtin_entries(builtins), *commands])
    return Registry(
        plugins=tuple(loaded.values()),
        frontends=_of_type(selectable, FrontendSpec),
        trainers=_of_type(selectable, TrainerSpec),
        commands=_of_type(invocable, CommandSpec),
        problems=(*problems, *selectable_problems, *invocable_problems),
        hook=Lifecycle(manager, loaded),
    )


def find(distributions: Iterable[Distribution]) -> tuple[list[Plugin], list[Problem]]:
    """The plugins that `distributions` announce, Fractus's own first, then by name.

    Of two distributions with one name, the first is meant, as in an import.
    """
    plugins: dict[str, dict[str, Plugin]] = {}
    problems = []
    for distribution in distributions:
        name, version = Path(str(getattr(distribution, "_path", "unknown"))).stem, "unknown"
        try:
            # Most distributions have nothing for us: spare the time to read their metadata
            if f"[{hooks.GROUP}]" not in (distribution.read_text("entry_points.txt") or ""):
                continue
            if distribution.metadata["Name"] is None:
                raise FractusError("it has no name")
            name, version = normalise(distribution.metadata["Name"]), distribution.version
            entry_points = distribution.entry_points.select(group=hooks.GROUP)
            here = {p.name: Plugin(name, version, p.name, p.value) for p in entry_points}
        except Exception as error:
            nobody = Plugin(name, version, key="", module="")
            text = f"ignored: its metadata cannot be read: {describe(error)}"
            problems.append(Problem(nobody, text, "*", error))
        else:
            plugins.setdefault(name, here)
    order = sorted(plugins, key=lambda name: (name != OWN, name))
    return [plugin for name in order for _, plugin in sorted(plugins[name].items())], problems


def load(manager: pluggy.PluginManager, plugin: Plugin) -> Plugin:
    """Import `plugin` and register its hooks with `manager`; the plugin, with its hooks known.

    Raises whatever the import raises, and pluggy's error for a hook that we do not have.
    """
    with redirect_stdout(sys.stderr):  # what a plugin prints is not part of a command's output
        module = EntryPoint(plugin.key, plugin.module, hooks.GROUP).load()
    try:
        manager.register(module, _id(plugin))
        manager.check_pending()
    except Exception:
        if manager.has_plugin(_id(plugin)):
            manager.unregister(name=_id(plugin))
        raise
    implemented = manager.get_hookcallers(module) or []
    return replace(plugin, hooks=tuple(caller.name for caller in implemented))


def collect(
    manager: pluggy.PluginManager, plugins: dict[str, Plugin], hook: str, spec_type: type[S]
) -> tuple[list[Entry[S]], list[Problem]]:
    """The usable specs that `plugins` return from `hook`, and what is wrong with the others."""
    entries: list[Entry[S]] = []
    problems = []
    implementations = callers(manager, hook)
    for plugin in [plugins[id_] for id_ in plugins if id_ in implementations]:
        try:
            with redirect_stdout(sys.stderr):
                results = implementations[_id(plugin)]()
            specs = _checked(results[0] if results else None, spec_type)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            text = f"adds no {KINDS[spec_type]}: {hook} failed: {describe(error)}"
            problems.append(Problem(plugin, text, "*", error))
            continue
        for spec in specs:
            wrong = "; ".join(faults(spec))
            if wrong:
                text = f"adds {KINDS[spec_type]} {spec.name!r}, ignored: {wrong}"
                problems.append(Problem(plugin, text, str(spec.name)))
            else:
                entries.append(Entry(spec, plugin, spec.name))
    return entries, problems


def name_entries(entries: Iterable[Entry[S]]) -> tuple[list[Entry[S]], list[Problem]]:
    """Settle who is called what, so that each entry's `name` means that entry and no other.

    A name that several distributions use is nobody's: each is reached by its qualified name. But
    if Fractus itself is one of them the name stays Fractus's, so that no plugin can take a
    built-in out of service. Within one distribution the first wins.
    """
    unique: dict[str, Entry[S]] = {}
    problems = []
    for entry in entries:
        first = unique.setdefault(entry.qualified, entry)
        if first is not entry:
            text = (
                f"adds {entry.kind} {entry.spec.name!r}, ignored: "
                f"the same distribution has {first.kind} {first.spec.name!r}"
            )
            problems.append(Problem(entry.plugin, text))
    users = Counter(entry.spec.name for entry in unique.values())
    named = []
    for entry in unique.values():
        name = entry.spec.name
        if users[name] > 1 and entry.distribution != OWN:
            others = [e for e in unique.values() if e.spec.name == name and e is not entry]
            text = (
                f"adds {entry.kind} {name!r}, reached as {entry.qualified!r} only: "
                f"{' and '.join(f'{e.plugin} has {e.kind} {name!r} too' for e in others)}"
            )
            problems.append(Problem(entry.plugin, text))
            named.append(replace(entry, name=entry.qualified))
        else:
            named.append(entry)
    return named, problems


def builtin_entries(specs: Iterable[CommandSpec]) -> list[Entry[CommandSpec]]:
    """Entries of Fractus's own commands, which need no discovery."""
    plugin = Plugin(OWN, own_version(), key="", module="fractus_core.cli")
    return [Entry(spec, plugin, spec.name) for spec in specs]


def own_version() -> str:
    try:
        return metadata.version(OWN)
    except metadata.PackageNotFoundError:  # a source tree on the path
        return "unknown"


def _checked(result: Any, spec_type: type[S]) -> list[S]:
    if not isinstance(result, list):
        raise FractusError(
            f"it returned a {type(result).__name__}, not a list of {spec_type.__name__}"
        )
    for item in result:
        if not isinstance(item, spec_type):
            raise FractusError(
                f"its list has a {type(item).__name__}, not only {spec_type.__name__}"
            )
    return result


def _of_type(entries: Iterable[Entry[Spec]], spec_type: type[S]) -> tuple[Entry[S], ...]:
    chosen = tuple(entry for entry in entries if isinstance(entry.spec, spec_type))
    return cast("tuple[Entry[S], ...]", chosen)


def _id(plugin: Plugin) -> str:
    return f"{plugin.distribution}:{plugin.key}"
