"""The options of front-ends and trainers on the command line: `--text.tokenizer`, `--cpu.lr`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import takewhile, zip_longest
from typing import Any, TypeAlias, TypeVar

import click

from fractus_core.cli.installed import registry
from fractus_core.cli.numbers import finite
from fractus_core.errors import FractusError
from fractus_core.plugins.records import Entry
from fractus_core.plugins.specs import FrontendSpec, Option, TrainerSpec

Selectable: TypeAlias = Entry[FrontendSpec] | Entry[TrainerSpec]
E = TypeVar("E", Entry[FrontendSpec], Entry[TrainerSpec])

_PLUGIN_FLAG = re.compile(r"(--[^.=\s]+\.)([^=\s]+)(=.*)?", re.DOTALL)


class PluginOptionsCommand(click.Command):
    """A command with `--frontend` and `--trainer` that has the options of those selected.

    `frontends` and `trainer` name the default selection:

        @click.command(cls=PluginOptionsCommand, frontends=["text"], trainer="cpu")
        def run(frontends: dict[str, dict[str, Any]], trainer: dict[str, dict[str, Any]]) -> None:

    The function receives every option's value, given or default, by the name of its front-end or
    trainer, in the order of selection: `{"text": {"tokenizer": "fractus-8k", ...}}` and
    `{"cpu": {"lr": 0.003, ...}}`. The names are those that `Registry.frontend` and
    `Registry.trainer` understand. `ctx.get_parameter_source("cpu.lr")`, and likewise "frontend"
    and "trainer", tell whether the user gave it.
    """

    def __init__(
        self, *args: Any, frontends: Sequence[str] = (), trainer: str = "", **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self._default_frontends = tuple(frontends)
        self._default_trainer = trainer
        self.params += [
            click.Option(
                ["--frontend"],
                multiple=True,
                default=self._default_frontends,
                show_default=True,
                expose_value=False,
                metavar="NAME",
                help="Front-end; repeat it for several. 'fractus frontends' shows them all.",
            ),
            click.Option(
                ["--trainer"],
                default=trainer,
                show_default=True,
                expose_value=False,
                metavar="NAME",
                help="Trainer. 'fractus trainers' shows them all.",
            ),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        head = list(takewhile(lambda arg: arg != "--", args))
        args = [*map(_with_underscores, head), *args[len(head) :]]
        found = registry(ctx)
        frontends = self._select(ctx, head, "--frontend", found.frontend, self._default_frontends)
        trainers = self._select(ctx, head, "--trainer", found.trainer, [self._default_trainer])
        selected: list[Selectable] = [*frontends, *trainers[-1:]]
        for trainer in trainers[-1:]:
            if trainer.spec.preset:
                ctx.default_map = {"preset": trainer.spec.preset}
        ctx.meta[__name__] = [
            (entry, [click_option(entry, option) for option in entry.spec.options])
            for entry in selected
        ]
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise self._explain(error, ctx, selected) from error
        values = {entry.name: _values(ctx, entry) for entry in selected}
        ctx.params["frontends"] = {entry.name: values[entry.name] for entry in frontends}
        ctx.params["trainer"] = {entry.name: values[entry.name] for entry in trainers[-1:]}
        return rest

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        of_plugins = [option for _, options in ctx.meta.get(__name__, ()) for option in options]
        return [*super().get_params(ctx), *of_plugins]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: list[tuple[str, Sequence[click.Parameter]]] = [
            ("Options", super().get_params(ctx)),
            *(
                (f"Options of {entry.kind} {entry.name} ({entry.plugin})", options)
                for entry, options in ctx.meta.get(__name__, ())
            ),
        ]
        for heading, parameters in sections:
            records = [parameter.get_help_record(ctx) for parameter in parameters]
            with formatter.section(heading):
                formatter.write_dl([record for record in records if record is not None])

    def _select(
        self,
        ctx: click.Context,
        args: Sequence[str],
        flag: str,
        find: Callable[[str], E],
        default: Sequence[str],
    ) -> list[E]:
        """The entries that `args` select. They must be known before the options can be parsed."""
        names = _values_of(flag, args)
        only_help = any(arg in ctx.help_option_names for arg in args)
        found: list[E] = []
        for name in names or default:
            try:
                entry = find(name)
            except FractusError as error:
                # A default that is not installed must not take away the help; nor completions
                if (only_help and not names) or ctx.resilient_parsing:
                    continue
                raise click.BadParameter(str(error), ctx, param_hint=flag) from error
            if entry in found:
                raise click.BadParameter(f"{name!r} is given twice", ctx, param_hint=flag)
            found.append(entry)
        return found

    def _explain(
        self, error: click.NoSuchOption, ctx: click.Context, selected: Sequence[Selectable]
    ) -> click.UsageError:
        """Why the option does not exist: its plugin is not selected, or it is misspelt."""
        everything: list[Selectable] = [*registry(ctx).frontends, *registry(ctx).trainers]
        flag = error.option_name
        prefix = flag.removeprefix("--").partition(".")[0]
        for entry in everything:
            if entry not in selected and prefix in (entry.name, f"no-{entry.name}"):
                select = "add --frontend" if entry.kind == "front-end" else "use --trainer"
                return click.UsageError(
                    f"{flag} belongs to {entry.kind} {entry.name!r}, which is not selected; "
                    f"{select} {entry.name}",
                    ctx,
                )
        known = [
            *(flag for parameter in self.get_params(ctx) for flag in parameter.opts),
            *(
                f"--{entry.name}.{option.name}"
                for entry in everything
                for option in entry.spec.options
            ),
        ]
        return click.NoSuchOption(flag, possibilities=get_close_matches(flag, known, n=1), ctx=ctx)


def click_option(entry: Selectable, option: Option) -> click.Option:
    """`option` as a click option, whose parameter is named `{entry.name}.{option.name}`."""
    name = f"{entry.name}.{option.name}"
    is_bool = isinstance(option.default, bool)
    made = click.Option(
        ["option", f"--{name}/--no-{name}" if is_bool else f"--{name}"],
        type=_click_type(option),
        default=option.default,
        # Of a pair click would show the name of the one that is taken.
        show_default=not is_bool,
        callback=finite,
        metavar=None if is_bool or option.choices else type(option.default).__name__.upper(),
        help=f"{option.help}  [default: {'on' if option.default else 'off'}]"
        if is_bool
        else option.help,
    )
    made.name = name  # click derives only identifiers
    return made


def _click_type(option: Option) -> click.ParamType[Any] | None:
    low, high = option.minimum, option.maximum
    if option.choices:
        return click.Choice(option.choices)
    match option.default:
        case bool():
            return None
        case str():
            return click.STRING
        case int() if low is None and high is None:
            return click.INT
        case int():
            return click.IntRange(
                None if low is None else math.ceil(low), None if high is None else math.floor(high)
            )
        case _:
            return click.FLOAT if low is None and high is None else click.FloatRange(low, high)


def _values(ctx: click.Context, entry: Selectable) -> dict[str, Any]:
    return {o.name: ctx.params.pop(f"{entry.name}.{o.name}") for o in entry.spec.options}


def _values_of(flag: str, args: Sequence[str]) -> list[str]:
    """What `args` gives `flag`, as `--flag value` or `--flag=value`."""
    values = []
    for arg, following in zip_longest(args, args[1:]):
        if arg == flag and following is not None:
            values.append(following)
        elif arg.startswith(f"{flag}="):
            values.append(arg.removeprefix(f"{flag}="))
    return values


def _with_underscores(arg: str) -> str:
    """`--cpu.chunk-len` is `--cpu.chunk_len`: option names are Python names."""
    match = _PLUGIN_FLAG.fullmatch(arg)
    return f"{match[1]}{match[2].replace('-', '_')}{match[3] or ''}" if match else arg
