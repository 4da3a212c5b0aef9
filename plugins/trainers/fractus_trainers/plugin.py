"""What the built-in trainers plugin adds to Fractus."""

from __future__ import annotations

from fractus_core.api import TrainerSpec, hookimpl
from fractus_trainers.options import CPU, GPU1B


@hookimpl
def fractus_trainers() -> list[TrainerSpec]:
    return [
        TrainerSpec(
            name="cpu",
            summary="Online training on the processor's cores.",
            target="fractus_trainers.cpu:CpuTrainer",
            devices=("cpu",),
            options=CPU,
        ),
        TrainerSpec(
            name="gpu1b",
            summary="Online training of a billion parameters on one GPU or several.",
            target="fractus_trainers.gpu1b:Gpu1bTrainer",
            devices=("cuda", "cpu"),
            options=GPU1B,
            preset="1b",
        ),
    ]
