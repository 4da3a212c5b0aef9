"""Fractus and plain networks, trained for the same time, on the same data and threads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_bench.controls import gpt
from fractus_bench.controls.cnn import CNN
from fractus_bench.controls.training import Schedule, of_equal_size, size, train
from fractus_bench.controls.vit import HEADS, ViT
from fractus_bench.product import data_file, fractus
from fractus_bench.records import Measured, Row
from fractus_bench.timing import spread
from fractus_bench.training import defaults
from fractus_core.api import Batch, Source, Split
from fractus_text.corpus import documents
from fractus_text.frontend import TextFrontend
from fractus_text.plugin import fractus_frontends as text_frontends
from fractus_text.shards import encode
from fractus_vision.frontend import VisionFrontend
from fractus_vision.plugin import fractus_frontends as vision_frontends


def chars(*, repeats: int, seconds: float, engine: list[str], controls: list[Row]) -> Measured:
    """Tiny Shakespeare in characters; losses in nats over the whole validation split.

    `loss` of a GPT is over windows that overlap by half, which suits it best; `loss_windows`, over
    windows that do not, is what is mostly reported. The engine reads all of it as one stream.
    """
    file = data_file("text/tinyshakespeare.txt")
    options = defaults(text_frontends()[0].options) | {"tokenizer": "chars"}
    schema = TextFrontend.infer_schema(str(file), options)
    encoding = TextFrontend(8, options, schema).encoding
    shards = encode(documents(str(file)), encoding, validation=options["validation"])

    def tokens(split: Split) -> Tensor:
        starts, lengths = shards.documents(split)
        positions = [np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
        return torch.from_numpy(shards.take(np.concatenate(positions)))

    training, validation = tokens("train"), tokens("validation")

    ours = Fractus(file, seconds, ["--text.tokenizer", "chars", *engine])

    def entrant(seed: int) -> Row:
        summary = ours.run(seed)
        return {
            "parameters": ours.parameters,
            "steps": summary["steps"],
            "tokens_per_second": summary["tokens_per_second"],
            "loss": summary["frontends"]["text"]["loss_warm"],
            "loss_cold": summary["frontends"]["text"]["loss_cold"],
        }

    def control(
        seed: int, *, n_layers: int, lr: float, schedule: Schedule, compiled: bool = False
    ) -> Row:
        torch.manual_seed(seed)
        model = gpt.GPT(encoding.n_vocab, n_layers=n_layers)
        batches = gpt.random_windows(training, seed)
        steps = train(
            model,
            batches,
            gpt.loss,
            seconds=seconds,
            lr=lr,
            schedule=schedule,
            compiled=compiled,
        )
        with torch.compiler.set_stance("force_eager"):
            evaluated = {
                "loss": gpt.evaluate(model, validation, stride=gpt.BLOCK // 2),
                "loss_windows": gpt.evaluate(model, validation, stride=gpt.BLOCK),
            }
        return {
            "parameters": size(model),
            "steps": steps,
            "tokens_per_second": steps * gpt.BATCH * gpt.BLOCK / seconds,
            **evaluated,
        }

    entrants: dict[str, Callable[[int], Row]] = {"fractus": entrant}
    for given in controls:
        name = f"GPT, {given['n_layers']} layers, {given['schedule']}, lr {given['lr']:g}"
        name += ", compiled" if given.get("compiled") else ""
        entrants[name] = lambda seed, given=given: control(seed, **given)  # type: ignore[misc]
    return Measured(_race(entrants, repeats), {"seconds": seconds, "engine": " ".join(engine)})


def cifar(*, repeats: int, seconds: float, engine: list[str], lr: dict[str, float]) -> Measured:
    """CIFAR-10; accuracy over the whole test set. The controls have the engine's size and data."""
    folder = data_file("cifar10")
    options = defaults(vision_frontends()[0].options)
    schema = VisionFrontend.infer_schema(str(folder), options)
    frontend = VisionFrontend(8, options, schema)
    classes = len(frontend.classes)

    def source(split: Split, seed: int) -> Source:
        return frontend.open(str(folder), split, batch_size=0, chunk_len=1, seed=seed)

    ours = Fractus(folder, seconds, ["--frontend", "vision", *engine])

    def entrant(seed: int) -> Row:
        summary = ours.run(seed)
        return {
            "parameters": ours.parameters,
            "steps": summary["steps"],
            "images_per_second": summary["steps"] * options["batch_size"] / seconds,
            "accuracy": summary["frontends"]["vision"]["accuracy"],
        }

    def control(seed: int, name: str, make: Callable[[int], nn.Module], step: int) -> Row:
        torch.manual_seed(seed)
        model = of_equal_size(make, range(2 * step, 512, step), ours.parameters)
        batches = ((b.observations, b.targets) for b in source("train", seed))
        steps = train(model, batches, F.cross_entropy, seconds=seconds, lr=lr[name], schedule="wsd")
        return {
            "parameters": size(model),
            "steps": steps,
            "images_per_second": steps * options["batch_size"] / seconds,
            "accuracy": _accuracy(model, source("validation", seed)),
        }

    entrants: dict[str, Callable[[int], Row]] = {
        "fractus": entrant,
        "ViT": lambda seed: control(seed, "vit", lambda w: ViT(classes, d_model=w), HEADS),
        "CNN": lambda seed: control(seed, "cnn", lambda w: CNN(classes, width=w), 2),
    }
    return Measured(_race(entrants, repeats), {"seconds": seconds, "engine": " ".join(engine)})


class Fractus:
    """`fractus run` with the same options, as a command."""

    def __init__(self, data: Path, seconds: float, options: Sequence[str]) -> None:
        self._arguments = [
            *("run", "--data", str(data), "--minutes", str(seconds / 60)),
            *("--cpu.threads", str(torch.get_num_threads()), *options),
        ]
        self.parameters: int = fractus(*self._arguments, "--dry-run")["parameters"]

    def run(self, seed: int) -> dict[str, Any]:
        """Its summary."""
        with tempfile.TemporaryDirectory() as folder:
            out = str(Path(folder) / "run")
            return fractus(*self._arguments, "--seed", str(seed), "--out", out)


@torch.no_grad()
def _accuracy(model: nn.Module, source: Iterable[Batch]) -> float:
    right = total = 0
    for batch in source:
        right += int((model(batch.observations).argmax(-1) == batch.targets).sum())
        total += len(batch.targets)
    return right / total


def _race(entrants: dict[str, Callable[[int], Row]], repeats: int) -> list[Row]:
    """Each entrant with the seeds 0, 1, ..., in turns; figures that differ become spreads."""
    results: dict[str, list[Row]] = {name: [] for name in entrants}
    for seed in range(repeats):
        for name, run in entrants.items():
            results[name].append(run(seed))
    rows = []
    for name, found in results.items():
        figures = {key: [row[key] for row in found] for key in found[0]}
        rows.append(
            {"variant": name}
            | {k: v[0] if len(set(v)) == 1 else spread(v) for k, v in figures.items()}
        )
    return rows
