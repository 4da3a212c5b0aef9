"""`fractus plugins list`, `fractus frontends`, `fractus trainers`: what is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fractus_core.cli.installed import registry
from fractus_core.cli.options import Selectable
from fractus_core.plugins.lifecycle import Lifecycle
from fractus_core.plugins.records import Entry, Plugin
from fractus_core.plugins.registry import Registry
from fractus_core.plugins.specs import Option, Spec, TrainerSpec

if TYPE_CHECKING:
    from rich.console import Console

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def plugins() -> None:
    """Show the installed plugins."""


@plugins.command("list")
@_as_json
def list_(as_json: bool) -> None:
    """Show what is installed, and what is wrong.

    The JSON is {"plugins": [...], "problems": [...]}. A plugin has distribution, version, module,
    hooks, and the names it adds: frontends, trainers, commands. A problem has distribution, version
    and message.
    """
    found = registry(report=False)
    if as_json:
        _print_json(
            {
                "plugins": [_plugin_json(plugin, found) for plugin in found.plugins],
                "problems": [
                    {
                        "distribution": problem.plugin.distribution,
                        "version": problem.plugin.version,
                        "message": str(problem),
                    }
                    for problem in found.problems
                ],
            }
        )
        return
    console = _console()
    rows = []
    for plugin in found.plugins:
        added = [
            f"{kind} {', '.join(names)}"
            for kind, names in (
                ("front-end", _names(found.frontends, plugin)),
                ("trainer", _names(found.trainers, plugin)),
                ("command", _names(found.commands, plugin)),
                ("hook", [hook for hook in plugin.hooks if hasattr(Lifecycle, hook)]),
            )
            if names
        ]
        rows.append((plugin.distribution, plugin.version, plugin.module, "\n".join(added)))
    _print_table(console, ("distribution", "version", "module", "adds"), rows)
    if found.problems:
        console.print("\nproblems", style="bold")
        for problem in found.problems:
            console.print(f"- {problem}")


@click.command()
@_as_json
def frontends(as_json: bool) -> None:
    """Show the installed front-ends and their options.

    The JSON is a list of objects with name, qualified_name, distribution, version, summary, target,
    extras, emits, default_data, metrics (name to "lower" or "higher", the better direction) and
    options, each with name, type, default, minimum, maximum, choices and help.
    """
    _show(registry().frontends, as_json)


@click.command()
@_as_json
def trainers(as_json: bool) -> None:
    """Show the installed trainers and their options.

    The JSON is a list of objects with name, qualified_name, distribution, version, summary, target,
    extras, accepts (empty: any observations), devices, preset (empty: the smallest) and options,
    each with name, type, default, minimum, maximum, choices and help.
    """
    _show(registry().trainers, as_json)


def _show(entries: Sequence[Selectable], as_json: bool) -> None:
    if as_json:
        _print_json([_entry_json(entry) for entry in entries])
        return
    console = _console()
    for number, entry in enumerate(entries):
        if number:
            console.print()
        console.print(f"{entry.name}  ({entry.plugin})", style="bold")
        console.print(entry.spec.summary)
        for label, text in _facts(entry):
            console.print(f"{label}: {text}")
        if entry.spec.options:
            console.print()
            _print_table(
                console,
                ("option", "default", "value", "meaning"),
                [
                    (
                        f"--{entry.name}.{option.name}",
                        _default(option),
                        _domain(option),
                        option.help,
                    )
                    for option in entry.spec.options
                ],
            )


def _facts(entry: Selectable) -> list[tuple[str, str]]:
    """What else a spec says, as label and text."""
    spec = entry.spec
    if isinstance(spec, TrainerSpec):
        return [
            ("devices", ", ".join(spec.devices)),
            ("accepts", ", ".join(spec.accepts) or "any observations"),
            *([("preset", spec.preset)] if spec.preset else []),
        ]
    facts = [("emits", spec.emits), ("default data", spec.default_data or "none; name some")]
    if spec.metrics:
        ordered = (f"{name} ({better} is better)" for name, better in spec.metrics.items())
        facts.append(("metrics", ", ".join(ordered)))
    return facts


def _default(option: Option) -> str:
    if isinstance(option.default, bool):
        return "yes" if option.default else "no"
    return str(option.default) if option.default != "" else '""'


def _domain(option: Option) -> str:
    """An option's type and bounds in words."""
    low, high = option.minimum, option.maximum
    if option.choices:
        return ", ".join(option.choices)
    type_ = type(option.default).__name__
    if low is not None and high is not None:
        return f"{type_}, {low:g} to {high:g}"
    if low is not None:
        return f"{type_}, {low:g} or more"
    if high is not None:
        return f"{type_}, {high:g} or less"
    return type_


def _entry_json(entry: Selectable) -> dict[str, Any]:
    spec = entry.spec
    common = {
        "name": entry.name,
        "qualified_name": entry.qualified,
        "distribution": entry.distribution,
        "version": entry.version,
        "summary": spec.summary,
        "target": spec.target,
        "extras": spec.extras,
    }
    if isinstance(spec, TrainerSpec):
        own: dict[str, Any] = {
            "accepts": spec.accepts,
            "devices": spec.devices,
            "preset": spec.preset,
        }
    else:
        own = {
            "emits": spec.emits,
            "default_data": spec.default_data,
            "metrics": dict(spec.metrics),
        }
    return {**common, **own, "options": [_option_json(option) for option in spec.options]}


def _option_json(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": type(option.default).__name__,
        "default": option.default,
        "minimum": option.minimum,
        "maximum": option.maximum,
        "choices": option.choices,
        "help": option.help,
    }


def _plugin_json(plugin: Plugin, found: Registry) -> dict[str, Any]:
    return {
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.module,
        "frontends": _names(found.frontends, plugin),
        "trainers": _names(found.trainers, plugin),
        "commands": _names(found.commands, plugin),
        "hooks": plugin.hooks,
    }


def _names(entries: Iterable[Entry[Spec]], plugin: Plugin) -> list[str]:
    return [entry.name for entry in entries if entry.plugin == plugin]


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _console() -> Console:
    from rich.console import Console

    # Into a pipe, each row is one line, however long: lines are what the reader works on
    width = None if sys.stdout.isatty() else 10_000
    return Console(width=width, markup=False, highlight=False, emoji=False)


def _print_table(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for number, title in enumerate(header):
        table.add_column(title, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    with console.capture() as drawn:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in drawn.get().splitlines()))
