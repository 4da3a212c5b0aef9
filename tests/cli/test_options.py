"""Options of plugins on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from fractus_core.cli.options import PluginOptionsCommand

if TYPE_CHECKING:
    from conftest import Site

PLUGIN = """
@hookimpl
def fractus_frontends():
    return [
        FrontendSpec(
            name="audio", summary="Sound.", target="a:B", emits="waves",
            options=(
                Option(name="rate", default=16000, minimum=8000, maximum=96000, help="Hertz."),
                Option(name="label", default="none", help="A label."),
            ),
        ),
        FrontendSpec(
            name="video", summary="Films.", target="a:V", emits="frames",
            options=(Option(name="size", default=32, help="Pixels."),),
        ),
    ]

@hookimpl
def fractus_trainers():
    return [
        TrainerSpec(
            name="slow", summary="Slow.", target="a:S",
            options=(
                Option(name="lr", default=0.5, minimum=0.0, maximum=1.0, help="Rate."),
                Option(name="beta", default=0.9, help="Unbounded."),
                Option(name="chunk_len", default=8, minimum=1, help="Length."),
                Option(name="head", default="dense", choices=("dense", "last"), help="Which."),
                Option(name="use_cache", default=True, help="Cache."),
            ),
        ),
        TrainerSpec(
            name="fast", summary="Fast.", target="a:F",
            options=(Option(name="lr", default=7, help="Rate."),),
        ),
    ]
"""

SLOW = {"lr": 0.5, "beta": 0.9, "chunk_len": 8, "head": "dense", "use_cache": True}
AUDIO = {"rate": 16000, "label": "none"}


@pytest.fixture(autouse=True)
def plugin(site: Site) -> Site:
    site.plugin("acme", PLUGIN, version="0.3")
    return site


def command(frontends: tuple[str, ...] = ("audio",), trainer: str = "slow") -> click.Command:
    @click.command(cls=PluginOptionsCommand, frontends=frontends, trainer=trainer)
    @click.option("--data", default="")
    @click.pass_context
    def train(ctx: click.Context, /, **values: Any) -> None:
        values["given"] = sorted(
            name
            for name in ("data", "frontend", "trainer", "audio.rate", "slow.lr")
            if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        )
        print(repr(values))

    return train


def invoke(*args: str, **defaults: Any) -> Result:
    return CliRunner().invoke(command(**defaults), args)


def values(*args: str, **defaults: Any) -> Any:
    result = invoke(*args, **defaults)
    assert result.exit_code == 0, result.output
    return eval(result.stdout, {"__builtins__": {}})


def error(*args: str, **defaults: Any) -> str:
    result = invoke(*args, **defaults)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_every_option_has_a_value() -> None:
    assert values("--data", "x") == {
        "data": "x",
        "frontends": {"audio": AUDIO},
        "trainer": {"slow": SLOW},
        "given": ["data"],
    }


def test_given_values_are_typed() -> None:
    given = values(
        *("--slow.lr", "1e-1", "--slow.chunk_len=4", "--slow.head", "last"),
        *("--no-slow.use_cache", "--audio.rate", "8000", "--audio.label", "--x"),
    )
    assert given["trainer"] == {
        "slow": {**SLOW, "lr": 0.1, "chunk_len": 4, "head": "last", "use_cache": False}
    }
    assert given["frontends"] == {"audio": {"rate": 8000, "label": "--x"}}
    assert given["given"] == ["audio.rate", "slow.lr"]


def test_dashes_and_underscores_are_the_same_in_option_names() -> None:
    given = values("--slow.chunk-len", "4", "--no-slow.use-cache", "--audio.label=a-b.c-d")
    assert given["trainer"]["slow"]["chunk_len"] == 4
    assert given["trainer"]["slow"]["use_cache"] is False
    assert given["frontends"]["audio"]["label"] == "a-b.c-d"


@pytest.mark.parametrize(
    "args",
    [
        "--frontend video --frontend=audio --trainer=fast",
        "--video.size 9 --trainer slow --frontend=video --trainer acme:fast --frontend acme:audio",
    ],
)
def test_the_selection_decides_which_options_there_are(args: str) -> None:
    given = values(*args.split())
    size = 9 if "--video.size" in args else 32
    assert list(given["frontends"].items()) == [("video", {"size": size}), ("audio", AUDIO)]
    assert given["trainer"] == {"fast": {"lr": 7}}
    assert given["given"] == ["frontend", "trainer"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--slow.lr 1.5", "'--slow.lr': 1.5 is not in the range 0.0<=x<=1.0"),
        ("--slow.lr nan", "'--slow.lr': nan is not a finite number"),
        ("--slow.lr inf", "'--slow.lr': inf is not in the range"),
        ("--slow.beta=-inf", "'--slow.beta': -inf is not a finite number"),
        ("--slow.lr high", "'--slow.lr': 'high' is not a valid float"),
        ("--slow.chunk_len 0", "'--slow.chunk_len': 0 is not in the range x>=1"),
        ("--slow.chunk_len 1.5", "'--slow.chunk_len': '1.5' is not a valid integer"),
        ("--audio.rate 7999", "7999 is not in the range 8000<=x<=96000"),
        ("--slow.head first", "'--slow.head': 'first' is not one of 'dense', 'last'"),
        ("--slow.use_cache=5", "does not take a value"),
        ("--slow.chunk_ln 5", "No such option '--slow.chunk_ln'. Did you mean '--slow.chunk_len'?"),
        ("--dta x", "Did you mean '--data'?"),
        ("--sloww.lr 1", "Did you mean '--slow.lr'?"),
        ("--frontend aduio", "--frontend: there is no front-end 'aduio'; did you mean 'audio'?"),
        ("--trainer video", "--trainer: there is no trainer 'video'; installed: "),
        ("--frontend audio --frontend acme:audio", "'acme:audio' is given twice"),
        ("--frontend", "--frontend"),
        (
            "--video.size 5",
            "--video.size belongs to front-end 'video', which is not selected; "
            "add --frontend video",
        ),
        (
            "--fast.lr=5",
            "--fast.lr belongs to trainer 'fast', which is not selected; use --trainer fast",
        ),
    ],
)
def test_a_wrong_option_is_explained(args: str, message: str) -> None:
    assert message in error(*args.split())


def test_a_negative_flag_of_another_trainer_is_explained() -> None:
    message = "--no-slow.use_cache belongs to trainer 'slow', which is not selected"
    assert message in error("--trainer", "fast", "--no-slow.use-cache")


def test_help_shows_the_options_of_the_selection() -> None:
    shown = invoke("--frontend", "video", "--help").stdout
    assert "Options of front-end video (acme 0.3):\n  --video.size INT" in shown
    assert "Options of trainer slow (acme 0.3):\n  --slow.lr FLOAT" in shown
    assert "Rate.  [default: 0.5; 0.0<=x<=1.0]" in shown
    assert "--slow.head [dense|last]" in shown
    assert "--slow.use_cache / --no-slow.use_cache" in shown
    assert "--audio." not in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_a_missing_default_is_told_but_does_not_take_the_help_away() -> None:
    assert "--slow.lr" in invoke("--help", frontends=("absent",)).stdout
    assert "there is no front-end 'absent'" in error(frontends=("absent",))
    assert "there is no front-end 'absnt'" in error("--help", "--frontend", "absnt")


def test_namesakes_are_told_apart_by_their_qualified_names(site: Site) -> None:
    site.plugin("other", PLUGIN, version="9")
    given = values(
        *("--frontend", "acme:audio", "--frontend", "other:audio", "--trainer", "other:fast"),
        *("--acme:audio.rate", "9000", "--other:fast.lr", "3"),
    )
    assert given["frontends"] == {"acme:audio": {**AUDIO, "rate": 9000}, "other:audio": AUDIO}
    assert given["trainer"] == {"other:fast": {"lr": 3}}
    assert "ask for 'acme:audio' or 'other:audio'" in error("--frontend", "audio")


def test_after_a_double_dash_nothing_is_an_option() -> None:
    assert "unexpected extra argument" in error("--", "--frontend=nothing").lower()


def test_a_shell_completes_the_options_of_the_selection() -> None:
    def complete(*words: str) -> list[str]:
        shell = ShellComplete(command(), {}, "fractus", "_FRACTUS_COMPLETE")
        return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]

    assert complete("--slow.l") == ["--slow.lr"]
    assert complete("--frontend", "video", "--v") == ["--video.size"]
    assert complete("--frontend", "nonsense", "--slow.h") == ["--slow.head"]
    assert complete("--slow.head", "l") == ["last"]
