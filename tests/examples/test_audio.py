"""The example plugin `fractus-audio`: found, trained, stopped, asked, and gone without a trace."""

from __future__ import annotations

import ast
import importlib
import json
import math
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from running import (
    ENGINE,
    OFTEN,
    TEXT,
    TRAINER,
    assert_same,
    kill_after_step,
    left,
    metrics,
    one_line,
    resume,
    write_corpus,
)
from wav_files import PITCH, RATE, SECONDS, tone, write_folders, write_table, write_wav

from fractus_audio.dataset import find_clips
from fractus_audio.frontend import AudioFrontend
from fractus_audio.mel import LogMel, mel_filters
from fractus_audio.plugin import fractus_frontends
from fractus_audio.waves import read_wave
from fractus_core.api import ContinuousThoughtEngine, EngineConfig, FractusError, Shard, Source
from fractus_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Site

PACKAGE = Path(sys.modules["fractus_audio"].__file__ or "").parent
DATA = Path(__file__).parents[2].parent / "shared" / "data"
SIZE = (
    *("--audio.seconds", str(SECONDS), "--audio.mels", "16", "--audio.batch_size", "4"),
    *("--audio.validation", "0.34"),
)
TINY = (*SIZE, *ENGINE, *TRAINER, *OFTEN)
D = 32


def run(data: Path, out: Path, *options: str) -> list[str]:
    """The arguments that start a tiny run."""
    return ["run", "--frontend", "audio", "--data", str(data), "--out", str(out), *TINY, *options]


def made(classes: tuple[str, ...] = ("high", "low"), **changed: Any) -> AudioFrontend:
    [spec] = fractus_frontends()
    options: dict[str, Any] = {option.name: option.default for option in spec.options}
    options |= {"seconds": SECONDS, "mels": 16, "batch_size": 4, "validation": 0.34} | changed
    torch.manual_seed(0)
    return AudioFrontend(D, options, {"classes": list(classes)})


def opened(data: Path, split: Any = "train", *, seed: int = 0, **changed: Any) -> Source:
    shard = changed.pop("shard", Shard())
    return made(**changed).open(
        str(data), split, batch_size=8, chunk_len=32, seed=seed, shard=shard
    )


def refusal(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line of a command that cannot be done."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == 1
    return one_line(capsys.readouterr().err)


def answer(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    """What a command prints, as JSON."""
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == 0
    return json.loads(capsys.readouterr().out)


# ------------------------------------------------------------------------------------ a stranger


def test_only_the_api_of_fractus_is_imported() -> None:
    files = list(PACKAGE.glob("*.py"))
    assert len(files) > 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                root = (name or "").partition(".")[0]
                assert not root.startswith("fractus_") or (
                    root == "fractus_audio" or name == "fractus_core.api"
                ), f"{file.name} imports {name}"


def test_the_plugin_module_is_light() -> None:
    code = "import sys, fractus_audio.plugin; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, check=True)


def test_it_is_found_without_problems(site: Site) -> None:
    registry = site.discover()
    assert registry.problems == ()
    assert registry.frontend("audio").qualified == "fractus-audio:audio"
    assert registry.command("listen").distribution == "fractus-audio"


def test_gone_without_a_trace(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the distribution's own metadata makes Fractus know of it."""
    if len(list(metadata.distributions(name="fractus-audio"))) > 1:
        pytest.skip("fractus-audio is really installed, too")
    data, out = write_folders(tmp_path / "data"), tmp_path / "run"
    assert main(run(data, out, "--steps", "1")) == 0
    questions = (["frontends"], ["run", "--help"], ["plugins", "list"], ["--help"])

    def told() -> str:
        capsys.readouterr()
        for question in questions:
            assert main(question) == 0
        both = capsys.readouterr()
        return (both.out + both.err).lower()

    found = told()
    assert "audio" in found
    assert "listen" in found
    shutil.rmtree(installed)
    importlib.invalidate_caches()
    found = told()
    assert "audio" not in found
    assert "listen" not in found
    line = refusal(capsys, "run", "--resume", out, "--steps", "2")
    assert "'audio'" in line


# ------------------------------------------------------------------------------------ wav files


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_pcm_is_read(tmp_path: Path, width: int, channels: int) -> None:
    """To within the last bit, whatever its width; channels are mixed down."""
    parts = [tone(200 + 100 * n, seconds=0.05) for n in range(channels)]
    parts[0][:2] = [-1.0, 1.0]
    file = write_wav(tmp_path / "a.wav", *parts, width=width)
    found = read_wave(file, sample_rate=RATE, length=len(parts[0]))
    expected = torch.tensor(parts, dtype=torch.float64).mean(0)
    error = (found.double() - expected).abs()
    assert error[2:].max() <= 2.0 ** -(8 * width) + 1e-7
    assert error.max() <= 2.0 ** (1 - 8 * width) + 1e-7  # 1.0 itself is one bit too much


@pytest.mark.parametrize("rate", [4000, 8000, 11025, 22050, 44100, 48000])
def test_a_tone_keeps_its_pitch_and_length(tmp_path: Path, rate: int) -> None:
    file = write_wav(tmp_path / "a.wav", tone(440, rate=rate, seconds=0.5), rate=rate)
    found = read_wave(file, sample_rate=RATE, length=RATE // 2)
    lines = torch.fft.rfft(found).abs()
    assert lines.argmax() * 2 == 440  # lines are 2 Hz apart
    inner = lines[215:226].square().sum() / lines.square().sum()
    assert inner > 0.98


def test_a_clip_is_padded_or_cropped_around_its_middle(tmp_path: Path) -> None:
    ramp = [n / 1000 for n in range(1, 901)]
    file = write_wav(tmp_path / "a.wav", ramp, width=4)
    short, long = (read_wave(file, sample_rate=RATE, length=length) for length in (100, 1000))
    assert torch.allclose(short, torch.tensor(ramp[400:500]))
    assert torch.allclose(long[50:950], torch.tensor(ramp))
    assert long[:50].abs().max() == long[950:].abs().max() == 0


def test_every_cut_of_a_wav_file_is_named(tmp_path: Path) -> None:
    whole = write_wav(tmp_path / "a.wav", tone(440, seconds=0.01)).read_bytes()
    cut = tmp_path / "cut.wav"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(FractusError) as caught:
            read_wave(cut, sample_rate=RATE, length=100)
        assert str(cut) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_damaged_header_is_named_or_harmless(tmp_path: Path) -> None:
    whole = write_wav(tmp_path / "a.wav", tone(440, seconds=0.01)).read_bytes()
    file, named = tmp_path / "damaged.wav", 0
    for place, value in product(range(44), (0, 1, 3, 5, 127, 128, 255)):
        file.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        try:
            samples = read_wave(file, sample_rate=RATE, length=100)
        except FractusError as error:
            assert str(file) in str(error)
            named += 1
        else:
            assert samples.shape == (100,)
            assert samples.abs().max() <= 1
    assert named > 44


# ---------------------------------------------------------------------------------- the spectrum


def test_mel_filters_share_all_there_is() -> None:
    """Between the first and the last peak, what one band loses its neighbour gains."""
    filters = mel_filters(16000, n_fft=512, mels=20)
    assert filters.shape == (257, 20)
    hertz = torch.linspace(0, 8000, 257)
    peaks = [700 * (10 ** (k / 21 * math.log10(1 + 8000 / 700)) - 1) for k in range(1, 21)]
    inside = (hertz >= peaks[0]) & (hertz <= peaks[-1])
    assert torch.allclose(filters[inside].sum(1), torch.ones(int(inside.sum())), atol=1e-5)


@pytest.mark.parametrize("frequency", [150, 440, 1000, 2500, 3600])
def test_a_tone_is_loudest_in_its_band(frequency: float) -> None:
    levels = LogMel(RATE, 40)(torch.tensor([tone(frequency, seconds=0.5)]))
    band = levels[0, 5:-5].mean(0).argmax().item()
    place = 41 * math.log(1 + frequency / 700) / math.log(1 + 4000 / 700) - 1
    assert abs(band - place) <= 1


def test_loudness_does_not_matter_and_silence_is_harmless() -> None:
    log_mel, wave = LogMel(RATE, 16), torch.tensor([tone(500)])
    assert torch.allclose(log_mel(wave), log_mel(0.01 * wave), atol=1e-3)
    assert log_mel(torch.zeros(1, 800)).isfinite().all()
    assert log_mel(wave).max() == 1
    assert log_mel(wave).min() == -1


def test_too_many_bands() -> None:
    with pytest.raises(FractusError, match="128 mels are too many at 8000 samples a second"):
        LogMel(RATE, 128)


# --------------------------------------------------------------------------------------- splits


def test_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    root = write_folders(tmp_path / "data", clips=10)
    (root / "low" / ".hidden.wav").touch()
    (root / "low" / "notes.txt").touch()
    held_out = {c.name for c in find_clips(str(root), validation=0.2) if c.split == "validation"}
    assert sorted(name.partition("/")[0] for name in held_out) == ["high", "high", "low", "low"]
    # By name alone: not by place, nor by content.
    moved = root.rename(tmp_path / "moved")
    write_wav(moved / "low" / "0.wav", tone(1))
    again = {c.name for c in find_clips(str(moved), validation=0.2) if c.split == "validation"}
    assert again == held_out


def test_a_table_says_what_is_held_out(tmp_path: Path) -> None:
    root = write_table(tmp_path / "data")
    clips = find_clips(str(root), validation=0.5)
    assert [c.name for c in clips if c.split == "validation"] == [
        "clips/low5.wav",
        "clips/high5.wav",
    ]
    assert sum(c.split == "train" for c in clips) == 10
    # Where there is validation data, test data stays out of it.
    table = root / "labels.csv"
    table.write_text(
        table.read_text().replace("low0.wav,low,me,train", "low0.wav,low,me,validation")
    )
    clips = find_clips(str(root), validation=0.5)
    assert [c.name for c in clips if c.split == "validation"] == ["clips/low0.wav"]
    assert sum(c.split == "train" for c in clips) == 9


# --------------------------------------------------------------------------------------- batches


def same(one: Any, other: Any) -> bool:
    fields = ("observations", "targets", "starts")
    return all(torch.equal(getattr(one, f), getattr(other, f)) for f in fields)


@pytest.mark.parametrize("augment", [True, False])
def test_any_position_is_found_again(tmp_path: Path, augment: bool) -> None:
    """8 clips to learn from, 3 a batch: batches lie across the ends of epochs."""
    data = write_folders(tmp_path / "data")
    source = opened(data, augment=augment, batch_size=3)
    cursors, batches = [], []
    for _ in range(9):
        cursors.append(json.loads(json.dumps(source.cursor())))
        batches.append(next(source))
    other = opened(data, augment=augment, batch_size=3)
    assert other.fingerprint == source.fingerprint
    for number in (8, 0, 5, 2):
        other.seek(cursors[number])
        assert same(next(other), batches[number])
    assert all(batch.starts.all() for batch in batches)


def read(source: Source, clips: int) -> list[tuple[float, ...]]:
    """The first clips that it gives, as values that can be compared."""
    found: list[tuple[float, ...]] = []
    while len(found) < clips:
        found += [tuple(clip.flatten().tolist()) for clip in next(source).observations]
    return found[:clips]


def test_every_epoch_has_every_clip_once_in_another_order(tmp_path: Path) -> None:
    source = opened(write_folders(tmp_path / "data"), augment=False, batch_size=3)
    clips = read(source, 24)
    epochs = clips[:8], clips[8:16], clips[16:]
    assert len(set(epochs[0])) == 8
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert epochs[0] != epochs[1]


def test_training_clips_are_changed_anew_and_others_never(tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data")
    assert len(set(read(opened(data), 80))) == 80
    assert read(opened(data), 8) != read(opened(data, seed=1), 8)
    plain = set(read(opened(data, "all", augment=False), 12))
    assert set(read(opened(data, "all"), 12)) == plain
    assert set(read(opened(data, "validation"), 4)) < plain


def test_one_pass_ends(tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data")
    assert [len(b.starts) for b in opened(data, "validation", batch_size=3)] == [3, 1]
    assert [len(b.starts) for b in opened(data, "all")] == [4, 4, 4]
    assert [len(b.starts) for b in opened(data, "all", batch_size=0)] == [8, 4]


def test_shards_are_all_there_is_and_have_nothing_in_common(tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data", clips=7)
    whole = opened(data, augment=False)
    clips = read(whole, 10)  # of each class 5
    parts = [opened(data, augment=False, shard=Shard(i, 3)) for i in range(3)]
    found = [set(read(part, 20)) for part in parts]
    assert sorted(map(len, found)) == [3, 3, 4]
    assert set.union(*found) == set(clips)
    assert len({part.fingerprint for part in (whole, *parts)}) == 4
    with pytest.raises(FractusError, match="no clip in shard 10/20"):
        opened(data, shard=Shard(10, 20))


def test_the_fingerprint_is_of_all_that_decides_batches(tmp_path: Path) -> None:
    data = write_folders(tmp_path / "data")
    first = opened(data).fingerprint
    assert opened(shutil.copytree(data, tmp_path / "copy")).fingerprint == first
    others = [
        opened(data, seed=1),
        opened(data, mels=17),
        opened(data, seconds=0.3),
        opened(data, sample_rate=7000),
        opened(data, batch_size=5),
        opened(data, augment=False),
        opened(data, validation=0.2),
        opened(data, "all"),
    ]
    write_wav(data / "low" / "0.wav", tone(301))
    others.append(opened(data))
    assert len({first, *(source.fingerprint for source in others)}) == 1 + len(others)


# --------------------------------------------------------------------------------------- a model


def test_an_untrained_model_knows_nothing(tmp_path: Path) -> None:
    frontend = made()
    sizes = {"d_model": D, "n_heads": 2, "n_layers": 1, "n_experts": 4, "d_ff": 32}
    engine = ContinuousThoughtEngine(EngineConfig(**sizes))
    source = frontend.open(
        str(write_folders(tmp_path / "data")), "train", batch_size=1, chunk_len=1, seed=0
    )
    batch = next(source)
    vectors = frontend.embed(batch.observations)
    assert vectors.shape == (4, math.ceil(21 / 4), D)
    hidden, _, _ = engine.tick_chunk_train(vectors, engine.initial_state(4))
    score = frontend.score(hidden, batch.targets)
    assert frontend.uniform_loss == pytest.approx(math.log(2))
    assert score.loss.item() == pytest.approx(math.log(2), rel=0.05)
    score.loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in frontend.parameters())
    with pytest.raises(ValueError, match=r"levels are \(4, 21, 15\): must be \(B, 21, 16\)"):
        frontend.embed(batch.observations[:, :, 1:])


def test_two_tones_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_folders(tmp_path / "data"), tmp_path / "run"
    found = answer(capsys, *run(data, out, "--steps", "30", "--json"))["frontends"]["audio"]
    assert found["accuracy"] == 1
    assert found["loss_warm"] < 0.3
    assert found["loss_uniform"] == pytest.approx(math.log(2))
    assert found["tokens"] == 4 * 6
    evaluations = [line for line in metrics(out) if line["kind"] == "eval"]
    assert evaluations[-1]["sample"] == "4 of 4 clips right"

    files = [write_wav(tmp_path / f"{name}.wav", tone(f)) for name, f in PITCH.items()]
    reports = answer(capsys, "listen", out, *files, "--json")
    assert [report["file"] for report in reports] == list(map(str, files))
    assert [report["class"] for report in reports] == ["low", "high"]
    for report in reports:
        assert next(iter(report["probabilities"])) == report["class"]
        assert sum(report["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert main(["listen", str(out), *map(str, files), "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(" ")[0] for line in lines] == [f"{files[0]}: low", f"{files[1]}: high"]

    line = refusal(capsys, "listen", out, tmp_path / "none.wav")
    assert f"cannot read {tmp_path / 'none.wav'}: No such file" in line
    files[0].write_bytes(files[0].read_bytes()[:-10])
    assert f"{files[0]} is cut short: 1595 of 1600" in refusal(capsys, "listen", out, *files)

    other = write_folders(tmp_path / "other", pitch={"low": 300, "middle": 700})
    line = refusal(capsys, "eval", out, "--data", other)
    assert f"{other} has a class 'middle'; this run knows high, low" in line
    one = write_folders(tmp_path / "one", pitch={"low": 310})
    assert answer(capsys, "eval", out, "--data", one, "--json")["audio"]["accuracy"] == 1


@pytest.mark.parametrize("step", [3, pytest.param(11, marks=pytest.mark.slow)])
def test_killed_and_resumed(tmp_path: Path, step: int) -> None:
    """Bit for bit, with 8 clips to an epoch and 3 to a step."""
    data = write_folders(tmp_path / "data")
    options = ("--steps", "12", "--checkpoint-every", "2", "--audio.batch_size", "3")
    assert main(run(data, tmp_path / "whole", *options)) == 0
    killed = tmp_path / "killed"
    kill_after_step(step, run(data, killed, *options))
    assert main(resume(killed)) == 0
    assert left(killed).values["info"]["cursors"] == {"audio": {"clip": 36}}
    assert_same(left(killed), left(tmp_path / "whole"))


@pytest.fixture
def joint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments of a run that hears and reads, but for `--out`."""
    monkeypatch.setattr("fractus_text.frontend.SAMPLE_TOKENS", 4)
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    data = write_table(tmp_path / "data")
    return [
        *("run", "--frontend", "text", "--frontend", "audio"),
        *("--data", f"text={corpus}", "--data", f"audio={data}", *TEXT, *TINY),
    ]


def test_with_text_on_one_engine(
    tmp_path: Path, joint: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    found = answer(capsys, *joint, "--out", out, "--steps", "60", "--log-every", "1", "--json")
    assert found["frontends"]["audio"]["accuracy"] == 1
    assert found["frontends"]["text"]["loss_warm"] < found["frontends"]["text"]["loss_uniform"] - 1
    trained = [line for line in metrics(out) if line["kind"] == "train"]
    assert [line["lane"] for line in trained] == ["text", "audio"] * 30
    wav = write_wav(tmp_path / "low.wav", tone(PITCH["low"]))
    assert answer(capsys, "listen", out, wav, "--json")[0]["class"] == "low"


def test_with_text_killed_and_resumed(tmp_path: Path, joint: list[str]) -> None:
    options = ("--steps", "10", "--checkpoint-every", "3")
    assert main([*joint, "--out", str(tmp_path / "whole"), *options]) == 0
    killed = tmp_path / "killed"
    kill_after_step(7, [*joint, "--out", str(killed), *options])
    assert main(resume(killed)) == 0
    assert_same(left(killed), left(tmp_path / "whole"))


def test_a_run_without_ears(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractus_text.frontend.SAMPLE_TOKENS", 4)
    corpus, out = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "run"
    options = [*TEXT, *ENGINE, *TRAINER, "--steps", "1"]
    assert main(["run", "--data", str(corpus), "--out", str(out), *options]) == 0
    line = refusal(capsys, "listen", out, tmp_path / "a.wav")
    assert line.endswith("has no front-end that hears; it has text")


# ------------------------------------------------------------------------------------- bad data


def _edit(old: str, new: str) -> Callable[[Path], None]:
    """Change the labels.csv."""

    def edit(root: Path) -> None:
        table = root / "labels.csv"
        assert old in table.read_text()
        table.write_text(table.read_text().replace(old, new))

    return edit


def _cut(size: int) -> Callable[[Path], None]:
    """Take the end off a clip."""

    def cut(root: Path) -> None:
        file = root / "clips" / "low0.wav"
        file.write_bytes(file.read_bytes()[:size])

    return cut


def _float(root: Path) -> None:
    file = root / "clips" / "low0.wav"
    data = bytearray(file.read_bytes())
    data[20:22] = struct.pack("<H", 3)
    file.write_bytes(data)


BAD = {
    "no folder": (shutil.rmtree, "no such folder: {root}; give one of wav files"),
    "nothing listed": (
        lambda r: (r / "labels.csv").write_text("file,label,split\n"),
        "{table} lists no clip",
    ),
    "neither table nor folders": (
        lambda r: (shutil.rmtree(r / "clips"), (r / "labels.csv").unlink()),
        "{root} has neither labels.csv nor class folders with wav files",
    ),
    "one class folder": (
        lambda r: (r / "labels.csv").unlink(),
        "{root} has one class, 'clips': give clips of at least two",
    ),
    "no column": (
        _edit("label,", "name,"),
        "{table} has no column 'label'; it has file, name, speaker, split",
    ),
    "an empty table": (
        lambda r: (r / "labels.csv").write_text(""),
        "{table} has no column 'file'; it has none",
    ),
    "not text": (
        lambda r: (r / "labels.csv").write_bytes(b"file,label,split\n\xff,a,b\n"),
        "{table} is no CSV file",
    ),
    "no file": (
        lambda r: (r / "clips" / "low0.wav").unlink(),
        "{table}, line 2: no such file: {clip}",
    ),
    "no label": (_edit("low0.wav,low", "low0.wav,"), "{table}, line 2: its label is empty"),
    "a short line": (
        _edit("low0.wav,low,me,train", "low0.wav,low"),
        "{table}, line 2: its split is empty",
    ),
    "another split": (
        _edit("low0.wav,low,me,train", "low0.wav,low,me,dev"),
        "{table}, line 2: split 'dev' is none of",
    ),
    "twice": (
        _edit("clips/low1.wav", "clips/low0.wav"),
        "{table}, line 3: clips/low0.wav is listed twice",
    ),
    "nothing to check with": (_edit("test", "train"), "{root} has no clip to check with"),
    "nothing to learn from": (
        _edit("low5.wav,low,", "low5.wav,bass,"),
        "{root}: class 'bass' has no clip to train on",
    ),
    "no wav file": (
        lambda r: (r / "clips" / "low0.wav").write_text("hello" * 20),
        "the wav file {clip}: ",
    ),
    "no header": (_cut(0), "the wav file {clip}: its header is damaged"),
    "no sample": (
        lambda r: write_wav(r / "clips" / "low0.wav", []),
        "the wav file {clip} is empty: 0 samples",
    ),
    "cut short": (_cut(1001), "the wav file {clip} is cut short: 478 of 1600 samples"),
    "floating point": (_float, "the wav file {clip}: unknown format: 3"),
}


@pytest.mark.parametrize("how", BAD)
def test_bad_data_is_one_line_that_names_the_file(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, said = BAD[how]
    root, out = (
        write_table(tmp_path / "data", clips=3 if how != "nothing to learn from" else 6),
        tmp_path / "run",
    )
    spoil(root)
    line = refusal(capsys, *run(root, out, "--steps", "1"))
    clip = root / "clips" / "low0.wav"
    assert said.format(root=root, table=root / "labels.csv", clip=clip) in line
    assert not out.exists()


def test_changed_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = write_folders(tmp_path / "data"), tmp_path / "run"
    assert main(run(data, out, "--steps", "1")) == 0
    write_wav(data / "low" / "0.wav", tone(301))
    assert "has changed" in refusal(capsys, "run", "--resume", out, "--steps", "2")


# ----------------------------------------------------------------------------------- real speech


@pytest.mark.slow
def test_spoken_digits_are_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a sixth of the steps that the default budget has on two cores."""
    digits = DATA / "fsdd"
    if not digits.is_dir():
        pytest.skip(f"needs the data in {digits}")
    options = ["--data", digits, "--out", tmp_path / "run", "--steps", "250"]
    found = answer(capsys, "run", "--frontend", "audio", *options, "--json")
    assert found["frontends"]["audio"]["accuracy"] > 0.9
