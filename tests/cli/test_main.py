"""The command `fractus`: fast help, lazy commands, one line for each error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fractus_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Site

COMMANDS = """
import os, sys
import click
from fractus_core.api import FractusError

class Custom(Exception): pass

ERRORS = {
    "fractus": FractusError("too short: 3 < 5; add text"),
    "value": ValueError("bad\\nvalue"),
    "os": FileNotFoundError(2, "No such file", "x.txt"),
    "custom": Custom(),
    "eof": EOFError("file ends early"),
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(7),
    "pipe": BrokenPipeError(32, "a worker died"),
}

@click.group()
def acme():
    "Commands of acme."

@acme.command()
@click.argument("name")
def fail(name):
    raise ERRORS[name]

@acme.command()
def confirm():
    click.confirm("sure?", abort=True)

@acme.command()
def number():
    return 5

@acme.command()
def flood():
    for _ in range(100_000):
        print("line")

not_a_command = 5
"""

PLUGIN = """
@hookimpl
def fractus_commands():
    return [
        CommandSpec(name="acme", summary="Acme's.", target="acme_commands:acme"),
        CommandSpec(name="odd", summary="Odd.", target="acme_commands:not_a_command"),
        CommandSpec(name="gone", summary="Gone.", target="acme_gone:gone"),
    ]
"""


@pytest.fixture
def acme(site: Site) -> Site:
    (site.folder / "acme_commands.py").write_text(COMMANDS)
    site.plugin("acme", PLUGIN, version="0.3")
    return site


def run(*args: str, site: Site | None = None) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": str(site.folder)} if site else {}
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, env={**os.environ, **path}
    )


# ----------------------------------------------------------------------------------------- help


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["plugins", "list"], ["frontends"], ["nonsense"]]
)
def test_torch_is_not_imported_before_it_is_needed(arguments: list[str]) -> None:
    code = (
        "import sys; from fractus_core.cli.main import main; main(sys.argv[1:]);"
        "print('heavy:', sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    assert "heavy: []" in run("-c", code, *arguments).stdout


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_needs_no_tables(argument: str) -> None:
    code = "import sys; from fractus_core.cli.main import main; main(sys.argv[1:]);"
    code += "print('rich' in sys.modules)"
    assert run("-c", code, argument).stdout.endswith("False\n")


def test_help_shows_every_command_without_importing_any(
    acme: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in ("run", "eval", "plugins", "frontends", "trainers", "tokenizer", "generate"):
        assert re.search(rf"^  {name} +\S", out, re.MULTILINE)
    assert re.search(r"^Commands of plugins:\n  acme  Acme's.\n", out, re.MULTILINE)
    assert "acme_commands" not in sys.modules


def test_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert run("-m", "fractus_core", "--version").stdout == f"fractus {version('fractus')}\n"


def test_nothing_asked_for_is_answered_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "Commands:" in capsys.readouterr().err


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ("acme fail fractus", 1, "fractus: error: too short: 3 < 5; add text"),
        ("acme fail value", 1, "fractus: error: ValueError: bad value (run again with --debug"),
        ("acme fail os", 1, "fractus: error: FileNotFoundError: [Errno 2] No such file: 'x.txt' ("),
        ("acme fail custom", 1, "fractus: error: Custom (run again with --debug"),
        ("acme fail eof", 1, "fractus: error: EOFError: file ends early (run again"),
        ("acme fail pipe", 1, "fractus: error: BrokenPipeError: [Errno 32] a worker died (run"),
        ("acme fail interrupt", 130, "fractus: interrupted"),
        ("acme fail", 2, "fractus: error: Missing argument 'NAME'."),
        ("acme fial x", 2, "fractus: error: No such command 'fial'."),
        ("acme --hlep", 2, "fractus: error: No such option '--hlep'."),
        ("amce", 2, "fractus: error: there is no command 'amce'; did you mean 'acme'? installed: "),
        ("rn", 2, "fractus: error: there is no command 'rn'; did you mean 'run'? installed: run"),
        ("--bad", 2, "fractus: error: No such option '--bad'."),
        ("odd", 1, "fractus: error: command 'odd' is of type int, not a click command"),
        ("gone", 1, "fractus: error: command 'gone' of acme 0.3 cannot be used: its target"),
    ],
)
def test_an_error_is_one_line(
    acme: Site, capsys: pytest.CaptureFixture[str], arguments: str, code: int, line: str
) -> None:
    assert main(arguments.split()) == code
    out, err = capsys.readouterr()
    assert out.strip() == ""
    first, *rest = err.strip().splitlines()
    assert first.startswith(line)
    assert [text.startswith("Try 'fractus") for text in rest] == ([True] if code == 2 else [])


def test_debug_shows_the_traceback(acme: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "acme", "fail", "value"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.endswith("fractus: error: ValueError: bad value\n")


def test_a_command_may_choose_its_exit_code_but_not_by_returning(acme: Site) -> None:
    assert main(["acme", "number"]) == 0
    with pytest.raises(SystemExit) as caught:
        main(["acme", "fail", "exit"])
    assert caught.value.code == 7


def test_a_command_has_a_qualified_name(acme: Site) -> None:
    assert main(["acme:acme", "number"]) == 0


def test_declining_is_not_an_interruption(acme: Site) -> None:
    for answer in ("n\n", ""):
        done = subprocess.run(
            [sys.executable, "-m", "fractus_core", "acme", "confirm"],
            input=answer,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(acme.folder)},
        )
        assert done.returncode == 1
        assert done.stderr.strip() == "fractus: aborted"


def test_a_reader_that_leaves_is_not_an_error(acme: Site) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fractus_core", "acme", "flood"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(acme.folder)},
    )
    assert process.stdout and process.stderr
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
    process.stderr.close()


def test_completion_offers_names_without_importing_commands(
    acme: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FRACTUS_COMPLETE", "bash_complete")
    for words, offered in (("fractus ac", "plain,acme\n"), ("fractus plugins l", "plain,list\n")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert main([]) == 0
        assert capsys.readouterr().out == offered
    assert "acme_commands" not in sys.modules


# --------------------------------------------------------------------------------------- plugins


def test_a_broken_plugin_breaks_no_command(site: Site) -> None:
    site.plugin("acme-broken", "import no_such_module", version="0.3")
    problem = (
        "fractus: plugin acme-broken 0.3 ignored: "
        "ModuleNotFoundError: No module named 'no_such_module'\n"
    )
    for arguments in (["--help"], ["frontends"], ["trainers", "--json"]):
        done = run("-m", "fractus_core", *arguments, site=site)
        assert done.returncode == 0
        assert done.stderr == problem
    asked = run("-m", "fractus_core", "acme-broken", site=site)
    assert asked.returncode == 2
    assert asked.stderr.startswith(
        f"{problem}fractus: error: there is no command 'acme-broken': plugin acme-broken 0.3 "
    )


def test_plugins_list_tells_the_problems_itself(site: Site) -> None:
    site.plugin("acme-broken", "raise RuntimeError('a reason ' + 'that is long ' * 10)", "0.3")
    done = run("-m", "fractus_core", "plugins", "list", site=site)
    assert done.stderr == ""
    assert re.search(r"^- plugin acme-broken 0.3 ignored: .*is long$", done.stdout, re.MULTILINE)
    traced = run("-m", "fractus_core", "--debug", "plugins", "list", site=site)
    assert 'acme_broken_plugin.py", line 2, in <module>' in traced.stderr


def test_plugins_list_as_json(acme: Site, capsys: pytest.CaptureFixture[str]) -> None:
    acme.plugin("acme-broken", "1 / 0", version="0.4")
    assert main(["plugins", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    by_name = {plugin["distribution"]: plugin for plugin in listed["plugins"]}
    assert by_name["acme"] == {
        "distribution": "acme",
        "version": "0.3",
        "module": "acme_plugin",
        "frontends": [],
        "trainers": [],
        "commands": ["acme", "odd", "gone"],
        "hooks": ["fractus_commands"],
    }
    assert listed["problems"] == [
        {
            "distribution": "acme-broken",
            "version": "0.4",
            "message": "plugin acme-broken 0.4 ignored: ZeroDivisionError: division by zero",
        }
    ]


FRONTEND = """
@hookimpl
def fractus_frontends():
    return [
        FrontendSpec(
            name="audio",
            summary="Sound, sliced.",
            target="a:B",
            emits="waves",
            metrics={"snr": "higher"},
            options=(
                Option(name="rate", default=16000, minimum=8000, help="Samples per second."),
                Option(name="window", default="hann", choices=("hann", "box"), help="[b]Shape[/b]"),
                Option(name="mono", default=True, help="Mix the channels, " * 9),
            ),
        )
    ]
"""


def test_frontends_as_json(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.plugin("acme-audio", FRONTEND)
    assert main(["frontends", "--json"]) == 0
    audio = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}["audio"]
    assert audio.pop("options")[0] == {
        "name": "rate",
        "type": "int",
        "default": 16000,
        "minimum": 8000,
        "maximum": None,
        "choices": [],
        "help": "Samples per second.",
    }
    assert audio == {
        "name": "audio",
        "qualified_name": "acme-audio:audio",
        "distribution": "acme-audio",
        "version": "1.0",
        "summary": "Sound, sliced.",
        "target": "a:B",
        "extras": [],
        "emits": "waves",
        "default_data": "",
        "metrics": {"snr": "higher"},
    }


def test_a_piped_table_is_plain_and_whole(site: Site) -> None:
    site.plugin("acme-audio", FRONTEND)
    out = run("-m", "fractus_core", "frontends", site=site).stdout
    assert "\x1b" not in out
    assert "…" not in out
    (row,) = [line for line in out.splitlines() if line.startswith("--audio.mono")]
    assert row.split(maxsplit=3) == [
        "--audio.mono",
        "yes",
        "bool",
        ("Mix the channels, " * 9).strip(),
    ]
    assert "[b]Shape[/b]" in out
    assert "snr (higher is better)" in out
    assert "16000    int, 8000 or more" in out


def test_a_table_on_a_terminal_fits_80_columns(site: Site, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty", reason="needs a Unix terminal")
    site.plugin("acme-audio", FRONTEND)
    chunks: list[bytes] = []

    def read(descriptor: int) -> bytes:
        chunks.append(os.read(descriptor, 4096))
        return chunks[-1]

    environment = {"PYTHONPATH": str(site.folder), "COLUMNS": "80", "TERM": "xterm"}
    code = (
        "import os, sys, json; os.environ.update(json.loads(sys.argv[1]));"
        "os.execv(sys.executable, [sys.executable, '-m', 'fractus_core', 'frontends'])"
    )
    pty.spawn([sys.executable, "-c", code, json.dumps(environment)], read, lambda _: b"")
    text = re.sub(r"\x1b\[[0-9;]*m", "", b"".join(chunks).decode())
    assert "Mix the channels" in text
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
