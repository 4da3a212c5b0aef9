"""Plugins are found, checked, named and loaded; broken ones cost one line and nothing else."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fractus_core import contract
from fractus_core.api import (
    CommandSpec,
    FractusError,
    FrontendSpec,
    Option,
    Step,
    TrainerSpec,
)
from fractus_core.plugins import hooks
from fractus_core.plugins.discovery import discover
from fractus_core.plugins.lifecycle import Lifecycle
from fractus_core.plugins.registry import load_target
from fractus_core.plugins.validation import faults

if TYPE_CHECKING:
    from conftest import Site

DOCS = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text()

GOOD = """
@hookimpl
def fractus_frontends():
    return [FrontendSpec(name="fine", summary="Fine.", target="fine.frontend:Fine", emits="tokens")]
"""


def frontend(name: str, **fields: Any) -> str:
    """The source of a plugin with the front-end `name`."""
    more = "".join(f", {key}={value!r}" for key, value in fields.items())
    return f"""
@hookimpl
def fractus_frontends():
    return [FrontendSpec(name={name!r}, summary="S.", target="m:C", emits="tokens"{more})]
"""


def only_problem(site: Site) -> str:
    (problem,) = site.discover().problems
    assert "\n" not in str(problem)
    return str(problem)


# ------------------------------------------------------------------------------------ discovery


def test_what_a_plugin_adds_is_in_the_registry(site: Site) -> None:
    site.plugin(
        "Acme_Audio",
        """
        @hookimpl
        def fractus_frontends():
            return [FrontendSpec(name="audio", summary="A.", target="a:B", emits="waves")]
        @hookimpl
        def fractus_trainers():
            return [TrainerSpec(name="tpu", summary="T.", target="a:T")]
        @hookimpl
        def fractus_commands():
            return [CommandSpec(name="listen", summary="L.", target="a:l")]
        @hookimpl
        def fractus_step(number):
            pass
        """,
        version="0.3",
    )
    registry = site.discover()
    assert registry.problems == ()
    assert registry.frontend("audio").spec.emits == "waves"
    assert registry.trainer("tpu").spec.name == "tpu"
    entry = registry.command("listen")
    assert (entry.distribution, entry.version, entry.module, entry.qualified) == (
        "acme-audio",
        "0.3",
        "Acme_Audio_plugin",
        "acme-audio:listen",
    )
    (plugin,) = registry.plugins
    assert set(plugin.hooks) == {
        "fractus_frontends",
        "fractus_trainers",
        "fractus_commands",
        "fractus_step",
    }


def test_the_built_in_plugins_have_no_problems() -> None:
    registry = discover()
    assert [p for p in registry.problems if p.plugin.distribution == "fractus"] == []
    assert registry.frontend("text").qualified == "fractus:text"
    assert registry.trainer("cpu").qualified == "fractus:cpu"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('boom\\nbang')", "ignored: RuntimeError: boom bang"),
        ("import no_such_module", "ignored: ModuleNotFoundError: No module named 'no_such_module'"),
        ("def broken(:", "ignored: SyntaxError: "),
        ("import sys; sys.exit(3)", "ignored: SystemExit: 3"),
        ("class Odd(BaseException): pass\nraise Odd", "ignored: Odd"),
        ("@hookimpl\ndef fractus_frontend(): ...", "unknown hook 'fractus_frontend'"),
        ("@hookimpl\ndef fractus_step(loss): ...", "Argument(s) {'loss'} are declared"),
        ("@hookimpl\ndef fractus_frontends(): 1 / 0", "fractus_frontends failed: ZeroDivision"),
        ("@hookimpl\ndef fractus_frontends(): exit(1)", "fractus_frontends failed: SystemExit: 1"),
        ("@hookimpl\ndef fractus_trainers(): pass", "it returned a NoneType, not a list of Train"),
        ("@hookimpl\ndef fractus_trainers(): return 'cpu'", "it returned a str, not a list"),
        ("@hookimpl\ndef fractus_trainers(): yield 1", "it returned a generator, not a list"),
        ("@hookimpl\ndef fractus_commands(): return ['run']", "has a str, not only CommandSpec"),
        (
            "@hookimpl\ndef fractus_trainers(): return [Option(name='a', default=1, help='')]",
            "Opti",
        ),
        ("@hookimpl\ndef fractus_frontends(): return [FrontendSpec(colour='red')]", "'colour'"),
        (
            frontend("Bad Name"),
            "adds front-end 'Bad Name', ignored: name 'Bad Name' does not match",
        ),
        (
            frontend("new", api=2),
            "adds front-end 'new', ignored: it asks for plugin API 2; this Fractus speaks 1; "
            "upgrade fractus or the plugin",
        ),
    ],
)
def test_a_broken_plugin_is_one_line_and_the_rest_works(
    site: Site, source: str, reason: str
) -> None:
    site.plugin("acme-broken", source, version="0.3")
    site.plugin("fine", GOOD)
    problem = only_problem(site)
    assert problem.startswith("plugin acme-broken 0.3 ")
    assert reason in problem
    assert [entry.name for entry in site.discover().frontends] == ["fine"]


def test_one_failing_hook_leaves_the_plugin_its_others(site: Site) -> None:
    site.plugin("half", GOOD + "@hookimpl\ndef fractus_trainers(): 1 / 0")
    assert "fractus_trainers failed" in only_problem(site)
    assert site.discover().frontend("fine").distribution == "half"


def test_an_optional_unknown_hook_is_no_problem(site: Site) -> None:
    site.plugin("eager", GOOD + "@hookimpl(optionalhook=True)\ndef fractus_checkpoint(): ...")
    registry = site.discover()
    assert registry.problems == ()
    assert registry.frontend("fine")


def test_an_interrupt_during_an_import_is_not_the_plugins_fault(site: Site) -> None:
    site.plugin("slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.discover()


def test_two_distributions_that_name_one_module_are_one_problem(site: Site) -> None:
    site.plugin("first", GOOD)
    site.install("second", entry_points={"x": "first_plugin"}, modules={})
    assert re.match("plugin second 1.0 ignored: .*already registered", only_problem(site))
    assert site.discover().frontend("fine").distribution == "first"


def test_of_two_versions_on_the_path_the_first_is_meant(site: Site, tmp_path: Path) -> None:
    from importlib import metadata

    site.plugin("acme", GOOD, version="2.0")
    older = type(site)(tmp_path / "older")
    older.plugin("acme", GOOD, version="1.0")
    path = [str(site.folder), str(older.folder)]
    registry = discover(metadata.distributions(path=path))
    assert [plugin.version for plugin in registry.plugins] == ["2.0"]
    assert registry.problems == ()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("METADATA", b""),
        ("entry_points.txt", b"[fractus]\nno equals sign\n"),
        ("entry_points.txt", b"[fractus]\nx = \xff\n"),
    ],
)
def test_unreadable_metadata_is_one_line(site: Site, file: str, content: bytes) -> None:
    site.plugin("damaged", GOOD)
    site.plugin("fine", GOOD)
    (site.folder / "damaged-1.0.dist-info" / file).write_bytes(content)
    assert re.match(r"plugin damaged.* ignored: its metadata cannot be read: ", only_problem(site))
    assert site.discover().frontend("fine").distribution == "fine"


def test_what_a_plugin_prints_does_not_reach_stdout(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.plugin(
        "chatty", "print('hello')\n@hookimpl\ndef fractus_trainers(): print('hi'); return []"
    )
    site.discover()
    assert capsys.readouterr() == ("", "hello\nhi\n")


def test_a_plugin_that_imports_torch_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    (site.folder / "torch.py").touch()
    site.plugin("heavy", "import torch\n" + GOOD)
    registry = site.discover()
    (problem,) = registry.problems
    assert str(problem).startswith("plugin heavy 1.0 makes every command slow: ")
    assert registry.frontend("fine").distribution == "heavy"


# ------------------------------------------------------------------------------------ bad specs


def option(**fields: Any) -> FrontendSpec:
    return spec(options=(Option(**{"name": "x", "default": 1.0, "help": "h", **fields}),))


def spec(**fields: Any) -> FrontendSpec:
    good = {"name": "n", "summary": "S.", "target": "a.b:C", "emits": "tokens"}
    return FrontendSpec(**{**good, **fields})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (spec(name="9lives"), "name '9lives' does not match"),
        (spec(name="a.b"), "name 'a.b' does not match"),
        (spec(name="a\n"), r"name 'a\n' does not match"),
        (spec(name=None), "name None does not match"),
        (spec(api="1"), "asks for plugin API '1'"),
        (spec(target="a.b"), "target 'a.b' is not 'module:attribute'"),
        (spec(target="a..b:C"), "target 'a..b:C' is not"),
        (spec(target=":C"), "target ':C' is not"),
        (spec(target="a:"), "target 'a:' is not"),
        (spec(target="a/b:C"), "target 'a/b:C' is not"),
        (spec(summary="two\nlines"), r"summary 'two\nlines' is not one line"),
        (spec(summary=""), "summary '' is not one line"),
        (spec(extras="datasets"), "extras 'datasets' is not a tuple of strings"),
        (spec(emits=""), "emits '' is not"),
        (spec(metrics={"loss": "down"}), "metric 'loss' is 'down'"),
        (spec(metrics=["loss"]), "metrics ['loss'] is not a mapping"),
        (spec(default_data=None), "default_data None is not a string"),
        (spec(options=["x"]), "options ['x'] is not a tuple of Option"),
        (option(name="chunk-len"), "option 'chunk-len': its name does not match"),
        (option(help=None), "help None is not a string"),
        (option(default=None), "default None is not a bool, int, float or str"),
        (option(default=(1,)), "default (1,) is not a bool"),
        (option(default=float("nan")), "default nan is not a finite number"),
        (option(maximum=float("inf")), "maximum inf is not a finite number"),
        (option(minimum="0"), "minimum '0' is not a finite number"),
        (option(minimum=2), "default 1.0 is not within 2..inf"),
        (option(maximum=0.5), "default 1.0 is not within -inf..0.5"),
        (option(default=True, minimum=0), "a bool has no minimum"),
        (option(default="a", choices=("b", "c")), "default 'a' is not one of its choices"),
        (option(default=1, choices=("1", "2")), "choices are for strings"),
        (option(default="a", choices="abc"), "choices 'abc' is not a tuple of strings"),
        (
            spec(
                options=(Option(name="x", default=1, help=""), Option(name="x", default=2, help=""))
            ),
            "option 'x' is there twice",
        ),
        (TrainerSpec(name="n", summary="S.", target="a:b", devices="cpu"), "devices 'cpu' is not"),  # type: ignore[arg-type]
        (TrainerSpec(name="n", summary="S.", target="a:b", accepts=[1]), "accepts [1] is not"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_spec_is_explained(bad: FrontendSpec | TrainerSpec, reason: str) -> None:
    assert any(reason in fault for fault in faults(bad))


@pytest.mark.parametrize(
    "good",
    [
        spec(),
        spec(name="my-audio_2", metrics={"loss": "lower", "accuracy": "higher"}),
        option(default=0, minimum=0, maximum=0),
        option(default=True),
        option(default="", choices=()),
        option(default="b", choices=("a", "b")),
        CommandSpec(name="n", summary="S.", target="a:b"),
        TrainerSpec(name="n", summary="S.", target="a:b", accepts=("tokens",), devices=("cuda",)),
    ],
)
def test_a_good_spec_has_no_faults(good: FrontendSpec | TrainerSpec | CommandSpec) -> None:
    assert list(faults(good)) == []


# ---------------------------------------------------------------------------------------- names


def test_a_name_that_two_distributions_use_is_nobodys(site: Site) -> None:
    site.plugin("one", frontend("audio"), version="1.1")
    site.plugin("two", frontend("audio"), version="2.2")
    registry = site.discover()
    assert [str(problem) for problem in registry.problems] == [
        "plugin one 1.1 adds front-end 'audio', reached as 'one:audio' only: "
        "two 2.2 has front-end 'audio' too",
        "plugin two 2.2 adds front-end 'audio', reached as 'two:audio' only: "
        "one 1.1 has front-end 'audio' too",
    ]
    with pytest.raises(FractusError, match=r"ask for 'one:audio' or 'two:audio'$"):
        registry.frontend("audio")
    assert registry.frontend("one:audio").version == "1.1"
    assert registry.frontend("two:audio").version == "2.2"
    assert [entry.name for entry in registry.frontends] == ["one:audio", "two:audio"]


def test_no_plugin_takes_a_name_of_fractus(site: Site) -> None:
    site.plugin("a-thief", frontend("text"))
    site.plugin("fractus", frontend("text"))
    registry = site.discover()
    assert registry.frontend("text").distribution == "fractus"
    assert registry.frontend("a-thief:text").name == "a-thief:text"
    (problem,) = registry.problems
    assert str(problem).startswith("plugin a-thief 1.0 adds front-end 'text', reached as")


def test_no_plugin_takes_a_built_in_command(site: Site) -> None:
    from importlib import metadata

    site.plugin(
        "thief",
        """
        @hookimpl
        def fractus_commands():
            return [CommandSpec(name="run", summary="Mine.", target="m:run")]
        """,
    )
    run = CommandSpec(name="run", summary="Train.", target="real:run")
    registry = discover(metadata.distributions(path=[str(site.folder)]), builtins=[run])
    assert registry.command("run").spec is run
    assert registry.command("thief:run").spec.summary == "Mine."
    assert "adds command 'run', reached as 'thief:run' only" in str(registry.problems[0])


def test_within_a_distribution_the_first_wins(site: Site) -> None:
    source = frontend("x") + "\n@hookimpl\ndef fractus_trainers():\n    return [TrainerSpec("
    site.plugin("acme", source + 'name="x", summary="T.", target="m:T")]')
    assert only_problem(site) == (
        "plugin acme 1.0 adds trainer 'x', ignored: the same distribution has front-end 'x'"
    )
    assert site.discover().frontend("x").name == "x"


def test_an_unknown_name_is_answered_with_a_suggestion_and_all_names(site: Site) -> None:
    site.plugin("a", frontend("vision"))
    site.plugin("b", frontend("text"))
    with pytest.raises(FractusError) as caught:
        site.discover().frontend("visoin")
    assert str(caught.value) == (
        "there is no front-end 'visoin'; did you mean 'vision'? installed: vision, text"
    )


def test_a_missing_name_is_explained_by_its_plugins_problem(site: Site) -> None:
    site.plugin("acme-audio", "raise RuntimeError('boom')", version="0.3")
    site.plugin("acme-video", frontend("video", api=7))
    registry = site.discover()
    for name in ("acme-audio:waves", "Acme_Audio:waves", "acme-audio"):
        with pytest.raises(FractusError, match=r"plugin acme-audio 0\.3 ignored: .*boom"):
            registry.frontend(name)
    for name in ("video", "acme-video:video"):
        with pytest.raises(FractusError, match=f"no front-end '{name}': .*API 7"):
            registry.frontend(name)
    with pytest.raises(FractusError, match="no trainer 'cpu'; installed: none"):
        registry.trainer("cpu")


def test_a_qualified_name_may_be_written_as_pip_would_allow(site: Site) -> None:
    site.plugin("acme-audio", frontend("audio"))
    assert site.discover().frontend("Acme_Audio:audio").name == "audio"


# -------------------------------------------------------------------------------------- targets


def load(site: Site, target: str, files: dict[str, str] | None = None, **fields: Any) -> Any:
    for name, content in (files or {}).items():
        (site.folder / name).write_text(content)
    site.plugin("acme", frontend("audio", **fields).replace('"m:C"', repr(target)), version="0.3")
    importlib.invalidate_caches()
    return load_target(site.discover().frontend("audio"))


def test_a_target_is_imported_when_it_is_loaded(site: Site) -> None:
    assert load(site, "acme_audio:C", {"acme_audio.py": "class C: pass"}).__name__ == "C"


@pytest.mark.parametrize(
    ("source", "fields", "reason"),
    [
        (
            "import soundfile_x",
            {"extras": ("audio", "gpu")},
            "No module named 'soundfile_x'; pip install 'acme[audio,gpu]'",
        ),
        ("import soundfile_x", {}, "importing 'acme_audio' failed: ModuleNotFoundError: No module"),
        ("raise ValueError('bad\\nthing')", {}, "failed: ValueError: bad thing"),
        ("import sys; sys.exit(1)", {}, "importing 'acme_audio' failed: SystemExit: 1"),
        ("", {}, "its target 'acme_audio:C' names an attribute that 'acme_audio' does not have"),
        (None, {"extras": ("audio",)}, "its target 'acme_audio:C' names no module: 'acme_audio'"),
    ],
)
def test_a_target_that_cannot_be_loaded_is_one_line(
    site: Site, source: str | None, fields: dict[str, Any], reason: str
) -> None:
    files = {} if source is None else {"acme_audio.py": source}
    with pytest.raises(FractusError) as caught:
        load(site, "acme_audio:C", files, **fields)
    message = str(caught.value)
    assert message.startswith("front-end 'audio' of acme 0.3 cannot be used: ")
    assert reason in message
    assert "\n" not in message


# ------------------------------------------------------------------------------------ lifecycle


def test_lifecycle_hooks_are_called_with_what_they_ask_for(site: Site) -> None:
    site.plugin(
        "watch",
        """
        seen = []
        @hookimpl
        def fractus_run_start(directory, config): seen.append((str(directory), config["x"]))
        @hookimpl
        def fractus_step(step, number): seen.append((number, step.loss))
        @hookimpl
        def fractus_run_end(): seen.append("end")
        """,
    )
    hook = site.discover().hook
    hook.fractus_run_start(Path("run"), {"x": 5})
    hook.fractus_step(Path("run"), 7, Step(lane="text", tokens=1, loss=2.5))
    hook.fractus_run_end(Path("run"), {})
    assert sys.modules["watch_plugin"].seen == [("run", 5), (7, 2.5), "end"]


def test_a_failing_lifecycle_hook_is_told_once_and_ends_nothing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.plugin("quits", "import sys\n@hookimpl\ndef fractus_step(): sys.exit('enough')")
    site.plugin("raises", "@hookimpl\ndef fractus_step(number): 1 / 0", version="0.3")
    site.plugin("works", "seen = []\n@hookimpl\ndef fractus_step(number): seen.append(number)")
    hook = site.discover().hook
    for number in range(3):
        hook.fractus_step(Path("run"), number, Step(lane="text", tokens=1, loss=1.0))
    assert sys.modules["works_plugin"].seen == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == [
        "fractus: plugin quits 1.0 failed in fractus_step, told this once: SystemExit: enough",
        "fractus: plugin raises 0.3 failed in fractus_step, told this once: "
        "ZeroDivisionError: division by zero",
    ]


def test_ctrl_c_in_a_lifecycle_hook_still_interrupts(site: Site) -> None:
    site.plugin("slow", "@hookimpl\ndef fractus_step(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.discover().hook.fractus_step(Path(), 1, Step(lane="text", tokens=1, loss=1.0))


# ---------------------------------------------------------------------------------------- docs


def hook_functions() -> dict[str, Any]:
    return dict(inspect.getmembers(hooks, lambda item: hasattr(item, "fractus_spec")))


@pytest.mark.parametrize("name", hook_functions())
def test_every_hook_is_documented(name: str) -> None:
    arguments = ", ".join(inspect.signature(hook_functions()[name]).parameters)
    assert f"| `{name}({arguments})` |" in DOCS


def test_every_lifecycle_hook_can_be_called() -> None:
    """Each hook is either collected at discovery or a method of `Lifecycle`, as specified."""
    collected = {"fractus_frontends", "fractus_trainers", "fractus_commands"}
    for name in hook_functions().keys() - collected:
        parameters = list(inspect.signature(getattr(Lifecycle, name)).parameters)
        assert parameters[1:] == list(inspect.signature(hook_functions()[name]).parameters)


@pytest.mark.parametrize(
    "field",
    sorted(
        {
            field.name
            for record in (FrontendSpec, TrainerSpec, CommandSpec, Option)
            for field in dataclasses.fields(record)
        }
    ),
)
def test_every_field_of_a_spec_is_documented(field: str) -> None:
    assert re.search(rf"^\| [^|]*`{field}`", DOCS, re.MULTILINE)


@pytest.mark.parametrize("protocol", [contract.Frontend, contract.Source, contract.Trainer])
def test_the_documented_example_has_every_method_of_the_contract(protocol: type) -> None:
    methods = {name for name in dir(protocol) if inspect.isfunction(getattr(protocol, name))}
    for name in methods - set(dir(object)):
        assert f"def {name}(" in DOCS


def test_the_documented_plugin_works(site: Site, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from fractus_core.api import ContinuousThoughtEngine, EngineConfig, Lane, Stream

    blocks = re.findall(r"```\w+\n# (\S+)\n(.*?)```", DOCS, re.DOTALL)
    modules = {name: code for name, code in blocks if name.endswith(".py")}
    project = tomllib.loads(dict(blocks)["pyproject.toml"])["project"]
    site.install(
        project["name"],
        project["version"],
        entry_points=project["entry-points"]["fractus"],
        modules={"acme_bytes/__init__.py": "", **modules},
    )
    registry = site.discover()
    assert registry.problems == ()

    torch.manual_seed(0)
    text = tmp_path / "text.txt"
    text.write_bytes(b"to be, or not to be, that is the question: " * 40)
    (bytes_, sgd) = registry.frontend("bytes"), registry.trainer("sgd")
    options = {o.name: o.default for o in bytes_.spec.options}
    frontend_class, trainer_class = load_target(bytes_), load_target(sgd)
    module = frontend_class(16, options, frontend_class.infer_schema(str(text), options))
    trainer = trainer_class({"lr": 0.5, "batch_size": 4, "chunk_len": 16}, seed=0)
    engine = ContinuousThoughtEngine(EngineConfig(d_model=16, n_heads=2, n_layers=1, n_experts=2))
    source = module.open(str(text), "train", batch_size=4, chunk_len=16, seed=0)
    lane = Lane("bytes", module, source, engine.initial_state(4))
    trainer.prepare(engine, [lane])
    steps = trainer.train(lambda: 0.0)
    losses = [next(steps).loss for _ in range(60)]
    assert losses[0] == pytest.approx(module.uniform_loss, rel=0.05)
    assert losses[-1] < losses[0] / 1.3

    cursor = source.cursor()
    ahead = next(source)
    source.seek(cursor)
    assert torch.equal(next(source).observations, ahead.observations)
    held_out = module.open(str(text), "validation", batch_size=1, chunk_len=16, seed=0)
    assert module.illustrate(Stream(engine, module), held_out, tmp_path, seed=0)
    assert len(list(held_out)) > 1
