"""`fractus retokenize`: what stays of a run, what is new, and that it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from running import (
    AS_TEXT,
    ENGINE,
    PROSE,
    TINY,
    assert_same,
    contents,
    kill_after_step,
    left,
    newest,
    one_line,
    resume,
    start,
    write_corpus,
)
from torch import Tensor

from fractus_core.api import open_run
from fractus_core.cli.main import main
from fractus_core.runs import refit
from fractus_core.runs.trees import load_tree
from fractus_text import calibration
from fractus_text.frontend import TextFrontend

if TYPE_CHECKING:
    from conftest import Site

torch.set_num_threads(1)

STEPS = ("--steps", "60", "--cpu.lr", "0.02", "--eval-every", "1000")
SOME = ("--steps", "4")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "COUNTED", 2000)
    monkeypatch.setattr(calibration, "READ", 600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, trained on bytes by Muon, its corpus, and the tokenizer `words`."""
    folder = tmp_path_factory.mktemp("trained")
    corpus = write_corpus(folder / "corpus.jsonl", documents=30)
    words = ("tokenizer", "train", str(corpus), "--vocab", "280", "-o", str(folder / "words"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        assert main([*words]) == 0
        assert main(start(corpus, folder / "run", *STEPS, "--cpu.optimizer", "muon")) == 0
    return folder


def retokenized(
    capsys: pytest.CaptureFixture[str], run: Path, tokenizer: Path | str, out: Path, *options: str
) -> Any:
    before = contents(run)
    capsys.readouterr()
    args = ["retokenize", str(run), "--tokenizer", str(tokenizer), "-o", str(out)]
    assert main([*args, "--json", *options]) == 0, capsys.readouterr().err
    assert contents(run) == before
    return json.loads(capsys.readouterr().out)


def bits_per_byte(capsys: pytest.CaptureFixture[str], run: Path, name: str = "text") -> float:
    capsys.readouterr()
    assert main(["eval", str(run), "--frontend", name, "--json"]) == 0
    found: float = json.loads(capsys.readouterr().out)[name]["bits_per_byte"]
    return found


def trees(run: Path) -> dict[str, Any]:
    return {path.stem: load_tree(path) for path in checkpoint(run).glob("*.safetensors")}


def checkpoint(run: Path) -> Path:
    return run / "checkpoints" / newest(run)


# --------------------------------------------------------------------------------------- the answer


def test_it_is_told_in_bits_per_byte(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = folder / "run", tmp_path / "out"
    report = retokenized(capsys, run, folder / "words", out)
    before, after = report["bits_per_byte"]
    assert before == pytest.approx(bits_per_byte(capsys, run))
    assert after == pytest.approx(bits_per_byte(capsys, out))
    fresh = retokenized(capsys, run, folder / "words", tmp_path / "fresh", "--rows", "fresh")
    assert fresh["bits_per_byte"][0] == before
    assert before < after < 0.8 * fresh["bits_per_byte"][1]

    assert report["directory"] == str(out)
    assert report["frontend"] == "text"
    assert report["tokenizer"] == ["bytes", "words"]
    assert report["tokens"] == [257, 280]
    assert report["rows"] == {"single": 257, "composed": 23, "fresh": 0}
    assert fresh["rows"] == {"single": 0, "composed": 0, "fresh": 280}
    assert (report["unread"], report["optimizer"]) == (None, True)
    assert report["scale"] in calibration.SCALES
    assert fresh["scale"] is None


def test_the_same_characters_by_other_numbers_are_as_likely(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = retokenized(capsys, folder / "run", "chars", tmp_path / "out")
    before, after = report["bits_per_byte"]
    assert report["rows"]["composed"] == report["rows"]["fresh"] == 0
    assert report["scale"] == 1.0
    assert after == pytest.approx(before, rel=0.02)


def test_in_words(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    args = ["retokenize", str(folder / "run"), "--tokenizer", str(folder / "words")]
    assert main([*args, "-o", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: text by words (280 tokens) instead of bytes (257)"
    assert lines[1] == "vectors: 257 of one old token, 23 composed of several, 0 fresh"
    before, after = bits_per_byte(capsys, folder / "run"), bits_per_byte(capsys, out)
    assert (
        lines[2]
        == f"bits per byte on held-out data: {before:.4f} -> {after:.4f}, before any training"
    )
    assert lines[-1].strip().startswith(f"fractus run --resume {out}")


# --------------------------------------------------------------------------------- the new run


def test_what_stays_and_what_starts_anew(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = folder / "run", tmp_path / "out"
    retokenized(capsys, run, folder / "words", out)
    old, new = trees(run), trees(out)
    assert old.keys() == new.keys()
    assert old["engine"].keys() == new["engine"].keys()
    assert all(torch.equal(new["engine"][name], old["engine"][name]) for name in old["engine"])
    assert list(new["frontend-text"]) == ["weight"]  # input and head are one
    assert new["frontend-text"]["weight"].shape == (280, 32)
    stream = new["stream-text"]
    assert not any(tensor.any() for block in stream["blocks"] for tensor in block.values())
    assert not stream["thought"].any()
    assert not stream["position"].any()
    assert torch.equal(new["rng"]["torch"], old["rng"]["torch"])
    assert not (out / "metrics.jsonl").exists()

    assert new["trainer"]["steps"] == old["trainer"]["steps"] == 60
    lost = 0
    for ours, theirs in zip(
        new["trainer"]["optimizers"], old["trainer"]["optimizers"], strict=True
    ):
        assert [g["params"] for g in ours["param_groups"]] == [
            g["params"] for g in theirs["param_groups"]
        ]
        for number in theirs["state"].keys() - ours["state"].keys():
            assert theirs["state"][number]["exp_avg"].shape == (257, 32)
            lost += 1
        for number, kept in ours["state"].items():
            for key, value in kept.items():
                expected = theirs["state"][number][key]
                assert torch.equal(value, expected) if isinstance(value, Tensor) else value is None
    assert lost == 1


def test_where_it_comes_from(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    retokenized(capsys, folder / "run", folder / "words", once)
    retokenized(capsys, once, "chars", twice, "--rows", "fresh")
    config = json.loads((twice / "run.json").read_text())
    first, second = config["lineage"]
    assert first["retokenized_from"] == str(folder / "run")
    assert first["frontend"] == second["frontend"] == "text"
    assert (first["tokenizer"], first["rows"]) == (["bytes", "words"], "composed")
    assert first["spent"]["steps"] == 60
    assert second["retokenized_from"] == str(once)
    assert (second["tokenizer"], second["rows"]) == (["words", "chars"], "fresh")
    was = json.loads((folder / "run" / "run.json").read_text())
    [frontend], [old] = config["frontends"], was["frontends"]
    assert frontend["options"] == {**old["options"], "tokenizer": "chars"}
    assert frontend["schema"]["tokenizer"]["name"] == "chars"
    assert frontend["data"] == old["data"]
    assert not set(frontend["fingerprints"].values()) & set(old["fingerprints"].values())


def test_it_goes_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It learns, and a process that is killed loses nothing but time."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for out in (whole, killed):
        report = retokenized(capsys, folder / "run", folder / "words", out)
    assert main(resume(whole, "--steps", "30")) == 0
    kill_after_step(7, resume(killed, "--steps", "30"))
    assert main(resume(killed, "--steps", "30")) == 0
    assert left(whole).steps == 30
    assert_same(left(killed), left(whole))
    assert bits_per_byte(capsys, whole) < report["bits_per_byte"][1]


def test_an_optimizer_that_is_none_of_torchs_starts_anew(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refit, "optimizers_of", lambda trainer: [])
    report = retokenized(capsys, folder / "run", folder / "words", tmp_path / "out")
    assert report["optimizer"] is False
    trainer = trees(tmp_path / "out")["trainer"]
    assert trainer["steps"] == 0
    assert not any(optimizer["state"] for optimizer in trainer["optimizers"])
    assert main(resume(tmp_path / "out", *SOME)) == 0


def test_it_reads_and_writes_by_the_new_tokens(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    retokenized(capsys, folder / "run", folder / "words", tmp_path / "out")
    frontend = open_run(tmp_path / "out").model.frontends["text"]
    assert isinstance(frontend, TextFrontend)
    source = frontend.open(str(folder / "corpus.jsonl"), "all", batch_size=1, chunk_len=64, seed=0)
    tokens = [t for batch in source for t in batch.observations.flatten().tolist()]
    assert max(tokens) > 256
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").open()]
    read = frontend.encoding.decode(tokens).split("<|endoftext|>")
    assert read[:-1] == texts[: len(read) - 1]
    assert main(["generate", str(tmp_path / "out"), "--prompt", "the quick", "--json"]) == 0


# ------------------------------------------------------------------------------------- other data


def test_other_data(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_corpus(tmp_path / "other.jsonl", documents=20, seed=9)
    out = tmp_path / "out"
    report = retokenized(capsys, folder / "run", folder / "words", out, "--data", str(other))
    assert report["unread"] is None
    assert report["bits_per_byte"][1] == pytest.approx(bits_per_byte(capsys, out))
    [frontend] = json.loads((out / "run.json").read_text())["frontends"]
    assert frontend["data"] == str(other)
    assert main(resume(out, *SOME)) == 0


def test_characters_that_the_old_tokenizer_cannot_say(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chars = tmp_path / "chars"
    retokenized(capsys, folder / "run", "chars", chars)
    other = tmp_path / "other.jsonl"
    other.write_text(
        (folder / "corpus.jsonl").read_text() + json.dumps({"text": "Über alle! " * 20}) + "\n"
    )
    report = retokenized(capsys, chars, "bytes", tmp_path / "out", "--data", str(other))
    assert report["bits_per_byte"][0] is None
    assert "has no token for" in report["unread"]
    assert report["rows"] == {"single": 28, "composed": 0, "fresh": 229}
    assert report["bits_per_byte"][1] < 8
    assert main(["retokenize", str(chars), "--tokenizer", "bytes", "-o", str(tmp_path / "told"),
                 "--data", str(other)]) == 0  # fmt: skip
    assert "not measured before, for tokenizer 'chars' has no" in capsys.readouterr().out


# ----------------------------------------------------------------------- several, and brains


def test_only_one_of_several_front_ends_changes(
    folder: Path, tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.plugin("acme", PROSE.format(target=AS_TEXT))
    corpus, run = str(folder / "corpus.jsonl"), tmp_path / "run"
    args = ["run", "--frontend", "text", "--frontend", "prose", *TINY, *SOME, "--out", str(run)]
    assert main([*args, "--data", f"text={corpus}", "--data", f"prose={corpus}"]) == 0
    old = trees(run)
    for name, other in (("text", "prose"), ("prose", "text")):
        out = tmp_path / name
        report = retokenized(capsys, run, folder / "words", out, "--frontend", name)
        assert report["frontend"] == name
        new = trees(out)
        for file in (f"frontend-{other}.safetensors", f"stream-{other}.safetensors"):
            assert (checkpoint(out) / file).read_bytes() == (checkpoint(run) / file).read_bytes()
        assert new[f"frontend-{name}"]["weight"].shape == (280, 32)
        states = [(t["trainer"]["optimizers"][0]["state"]) for t in (old, new)]
        assert len(states[0]) == len(states[1]) + 1
        [manifest] = (out / "checkpoints").glob("*/checkpoint.json")
        cursors = json.loads(manifest.read_text())["info"]["cursors"]
        assert cursors == {name: {"epoch": 0, "chunk": 0}, other: {"epoch": 0, "chunk": 2}}
        assert main(resume(out, *SOME)) == 0
    assert retokenized(capsys, run, folder / "words", tmp_path / "first")["frontend"] == "text"


def test_it_leaves_the_brain(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brain, run, out = tmp_path / "brain", tmp_path / "run", tmp_path / "out"
    assert main(start(folder / "corpus.jsonl", run, *SOME, "--brain", str(brain))) == 0
    before = contents(brain)
    retokenized(capsys, run, folder / "words", out)
    assert json.loads((out / "run.json").read_text())["brain"] is None
    assert "base" not in trees(out)
    assert main(resume(out, *SOME)) == 0
    assert contents(brain) == before


# ------------------------------------------------------------------------------------ what is wrong


def refused(capsys: pytest.CaptureFixture[str], out: Path, *args: str, code: int = 1) -> str:
    before = contents(out.parent)
    capsys.readouterr()
    assert main(["retokenize", *args, "-o", str(out)]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "--debug" not in told.err, "an error that nobody foresaw"
    assert {n: c for n, c in contents(out.parent).items() if not n.startswith("cache")} == {
        n: c for n, c in before.items() if not n.startswith("cache")
    }
    return one_line(told.err)


def test_what_cannot_be(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = str(folder / "run"), tmp_path / "out"
    words = ("--tokenizer", str(folder / "words"))
    (tmp_path / "there").mkdir()
    line = refused(capsys, tmp_path / "there", run, *words)
    assert line.startswith(f"fractus: error: {tmp_path / 'there'} exists")
    line = refused(capsys, out, str(tmp_path / "there"), *words)
    assert line.startswith(f"fractus: error: {tmp_path / 'there'} is no run")
    line = refused(capsys, out, run, "--tokenizer", "fractus-9k")
    assert "there is no tokenizer and no file 'fractus-9k'; did you mean fractus-8k?" in line
    line = refused(capsys, out, run, "--tokenizer", "bytes")
    assert line == f"fractus: error: {run} has the tokenizer bytes already; name another"
    line = refused(capsys, out, run, *words, "--frontend", "prose")
    assert line == f"fractus: error: {run} has no front-end prose; it has text"
    line = refused(capsys, out, run, *words, "--data", str(tmp_path / "none.txt"))
    assert "no such data" in line
    assert "--tokenizer" in refused(capsys, out, run, code=2)


def test_a_tokenizer_under_another_name_is_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    retokenized(capsys, folder / "run", folder / "words", tmp_path / "run", "--rows", "fresh")
    copy = tmp_path / "copy"
    copy.write_bytes((folder / "words").read_bytes())
    line = refused(capsys, tmp_path / "out", str(tmp_path / "run"), "--tokenizer", str(copy))
    assert "has the tokenizer" in line


def test_a_run_without_a_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes((folder / "run" / "run.json").read_bytes())
    line = refused(
        capsys, tmp_path / "out", str(tmp_path / "run"), "--tokenizer", str(folder / "words")
    )
    assert "has no checkpoint yet" in line


def test_data_that_has_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, run = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "run"
    assert main(start(corpus, run, *SOME)) == 0
    write_corpus(corpus, seed=3)
    line = refused(capsys, tmp_path / "out", str(run), "--tokenizer", str(folder / "words"))
    assert "has changed" in line


def test_a_run_that_reads_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision")
    run = tmp_path / "run"
    small = ("--cpu.threads", "1", "--cpu.batch_size", "4", *ENGINE, "--steps", "1")
    args = ["run", "--frontend", "vision", "--trainer", "cpu", "--out", str(run), *small]
    assert main([*args, "--eval-tokens", "64"]) == 0
    line = refused(capsys, tmp_path / "out", str(run), "--tokenizer", "bytes")
    assert line == f"fractus: error: {run} has no front-end that reads text; it has vision"
