"""What the values of `fractus run`'s options mean. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import click

from fractus_core.cli.installed import registry
from fractus_core.engine import PRESETS, EngineConfig

T = TypeVar("T")
FEW = 10
"""Names, of which a person is told all."""


def parsed(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str], T]:
    """A callback for an option that `parse` understands, or raises `ValueError`."""

    def callback(ctx: click.Context, parameter: click.Parameter, value: str) -> T:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from error

    return callback


def device(ctx: click.Context, trainer: dict[str, dict[str, Any]], value: str) -> None:
    """Give the trainer the value of its own option `device`."""
    [name] = trainer
    where = ", ".join(registry().trainer(name).spec.devices)
    _give(ctx, trainer, "device", value, otherwise=f"computes on {where} only")


def parallel(ctx: click.Context, trainer: dict[str, dict[str, Any]], value: str) -> None:
    """Give the trainer the value of its own option `parallel`."""
    _give(ctx, trainer, "parallel", value, otherwise="computes in one process only")


def _give(
    ctx: click.Context, trainer: dict[str, dict[str, Any]], flag: str, value: str, *, otherwise: str
) -> None:
    [(name, chosen)] = trainer.items()
    if flag not in chosen:
        raise click.UsageError(f"--{flag} {value}: trainer {name!r} {otherwise}", ctx)
    [option] = [p for p in ctx.command.get_params(ctx) if p.name == f"{name}.{flag}"]
    chosen[flag] = option.type.convert(value, option, ctx)


PRESET_HELP = f"Size of the engine: {', '.join(PRESETS)}."


def preset(ctx: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    """The fields of a preset; none where none is named."""
    return {} if value is None else _look_up(ctx, parameter, value, PRESETS)


def settings(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """FIELD=VALUE pairs, each value of its field's type."""
    types = {field.name: type(field.default) for field in dataclasses.fields(EngineConfig)}
    fields: dict[str, Any] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not FIELD=VALUE", ctx, parameter)
        kind = _look_up(ctx, parameter, name, types)
        fields[name] = click.types.convert_type(kind).convert(text, parameter, ctx)
    return fields


settings_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    callback=settings,
    help="A field of EngineConfig, such as n_layers=4. Repeatable.",
)


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a command `--preset` and `--set`; what they say together, `engine` tells."""
    preset_option = click.option(
        "--preset",
        default="stage0",
        show_default=True,
        metavar="NAME",
        callback=preset,
        help=PRESET_HELP,
    )
    return preset_option(settings_option(command))


def stages(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """`0,1,2` or `stage0,1b`: names of presets."""
    parts = [part.strip() for part in value.split(",")] if value is not None else []
    names = tuple(f"stage{part}" if part.isdecimal() else part for part in parts)
    for name in names:
        _look_up(ctx, parameter, name, PRESETS)
    return names


def engine(ctx: click.Context, preset: dict[str, Any], settings: dict[str, Any]) -> EngineConfig:
    fields = preset | settings
    # The reference dynamics is one choice, not eight.
    reference = fields.get("dynamics") == "reference"
    try:
        return (EngineConfig.reference if reference else EngineConfig)(**fields)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param_hint="--set") from error


def _look_up(ctx: click.Context, parameter: click.Parameter, name: str, known: dict[str, T]) -> T:
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1)
    ask = close and len(known) > FEW
    hint = f"did you mean {close[0]!r}?" if ask else f"there are {', '.join(known)}"
    raise click.BadParameter(f"there is no {name!r}; {hint}", ctx, parameter)


def data(ctx: click.Context, given: tuple[str, ...], names: list[str]) -> dict[str, str]:
    """Each front-end's data, where it is given: `NAME=DATA`, or `DATA` where there is but one."""
    found: dict[str, str] = {}
    for value in given:
        name, equals, rest = value.partition("=")
        if not (equals and name in names):
            name, rest = names[0], value
            if len(names) > 1:
                raise click.UsageError(
                    f"--data {value}: say for which front-end, as in --data {names[0]}={value}", ctx
                )
        if name in found:
            raise click.UsageError(f"--data for {name} is given twice: {found[name]}, {rest}", ctx)
        # A run is resumed from anywhere.
        found[name] = str(Path(rest).resolve()) if rest and Path(rest).exists() else rest
    return found


def with_defaults(ctx: click.Context, data: dict[str, str], names: list[str]) -> dict[str, str]:
    """`data`, and for each front-end without any, what it has of its own."""
    for name in names:
        default = registry().frontend(name).spec.default_data
        if name not in data and not default:
            raise click.UsageError(f"front-end {name!r} has no data of its own: give --data", ctx)
        data.setdefault(name, default)
    return data


def shares(ctx: click.Context, mix: str | None, names: list[str]) -> dict[str, int]:
    """`text=3,vision=1` by front-end."""
    found: dict[str, int] = {}
    for part in mix.split(",") if mix else ():
        name, _, share = part.strip().rpartition("=")
        if name not in names or name in found or not share.isdecimal() or int(share) < 1:
            example = ",".join(f"{name}={number}" for number, name in enumerate(names, 1))
            raise click.BadParameter(
                f"{part!r}: each of {', '.join(names)} once at most, with a whole number from 1 "
                f"on, as in {example}",
                ctx,
                param_hint="--mix",
            )
        found[name] = int(share)
    return found
