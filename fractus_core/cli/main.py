"""The command `fractus`: finds the command that is meant, imports it alone, and reports errors.

Importing this module imports neither torch nor numpy, and no plugin.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from itertools import takewhile

import click
from click.shell_completion import CompletionItem, shell_complete

from fractus_core.cli import torchrun
from fractus_core.cli.installed import BUILTINS, registry
from fractus_core.errors import FractusError, ToldError, describe
from fractus_core.plugins.discovery import OWN, builtin_entries
from fractus_core.plugins.records import Entry
from fractus_core.plugins.registry import load_target
from fractus_core.plugins.specs import CommandSpec

INTERRUPTED = 130
"""What a shell says of a process that Ctrl-C ended: 128 + SIGINT."""
HEARING = 1.0
"""Seconds that the first of several processes has to say what is wrong: all end with one."""
_COMPLETION = "_FRACTUS_COMPLETE"
"""The variable in which a shell asks for completions; click's convention."""


class Commands(click.Group):
    """Fractus's own commands and those of plugins, each imported only when it is invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in registry(ctx).commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            command = load_target(_entry(ctx, cmd_name))
        except (FractusError, click.UsageError):
            if ctx.resilient_parsing:  # a shell asks for completions: there are none
                return None
            raise
        if not isinstance(command, click.Command):
            raise FractusError(
                f"command {cmd_name!r} is of type {type(command).__name__}, not a click command"
            )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = registry(ctx).commands
        own = [entry for entry in commands if entry.distribution == OWN]
        others = [entry for entry in commands if entry.distribution != OWN]
        for heading, entries in (("Commands", own), ("Commands of plugins", others)):
            if entries:
                with formatter.section(heading):
                    formatter.write_dl([(entry.name, entry.spec.summary) for entry in entries])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(entry.name, help=entry.spec.summary)
            for entry in registry(ctx).commands
            if entry.name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def _entry(ctx: click.Context, name: str) -> Entry[CommandSpec]:
    for spec in BUILTINS:  # works whatever is wrong with the plugins
        if spec.name == name:
            return builtin_entries([spec])[0]
    try:
        return registry(ctx).command(name)
    except FractusError as error:
        raise click.UsageError(str(error), ctx) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=OWN, message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.pass_context
def fractus(ctx: click.Context, debug: bool) -> None:
    """Train one persistent-state engine on any modality.

    Front-ends, trainers and more commands come from plugins: see 'fractus plugins list'.
    """
    if ctx.invoked_subcommand not in (None, "run"):
        torchrun.require_one(ctx, repr(ctx.invoked_subcommand))


def main(args: Sequence[str] | None = None) -> int:
    """Run `fractus` with `args` (default: the process's) and return the exit code.

    0 done; 1 failed; 2 wrongly used; 130 interrupted.
    """
    args = sys.argv[1:] if args is None else list(args)
    debug = "--debug" in takewhile(lambda arg: arg.startswith("-"), args)
    completion = os.environ.get(_COMPLETION)
    try:
        if completion:
            return shell_complete(fractus, {}, OWN, _COMPLETION, completion)
        # Not fractus.main(), which takes OSError and EOFError for its own and ends the program
        with torchrun.speaking(), fractus.make_context(OWN, args) as context:
            fractus.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.ClickException as error:
        if torchrun.number() > 0:  # the first says it, for which torchrun has to leave it time
            time.sleep(HEARING)
            return error.exit_code
        return _report_misuse(error)
    except ToldError:
        return 1
    except (click.Abort, KeyboardInterrupt) as error:
        if torchrun.number() > 0:
            return INTERRUPTED
        if isinstance(error.__context__ or error, KeyboardInterrupt):  # click's is from a prompt
            return _report("interrupted", INTERRUPTED)
        return _report("aborted", 1)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 1
        if debug:
            traceback.print_exception(error)
        hint = " (run again with --debug for the traceback: fractus --debug ...)"
        expected = debug or isinstance(error, FractusError)
        return _report(f"error: {describe(error)}{'' if expected else hint}", 1)


def _report(message: str, code: int) -> int:
    who = f"rank {torchrun.number()}: " if torchrun.number() > 0 else ""
    click.echo(f"fractus: {who}{message}", err=True)
    return code


def _report_misuse(error: click.ClickException) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    _report(f"error: {' '.join(error.format_message().split())}", error.exit_code)
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "fractus"
        click.echo(f"Try '{path} --help' for help.", err=True)
    return error.exit_code


def _nobody_reads() -> bool:
    """Whether stdout is closed at the other end, as by `| head`; if so, nothing more goes there.

    Any other pipe may break too, such as a worker's, and that is an error.
    """
    try:
        sys.stdout.write("\n")  # only an attempt tells
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
