"""What the built-in trainers plugin adds to Fractus."""

from __future__ import annotations

from fractus_core.api import Option, TrainerSpec, hookimpl


@hookimpl
def fractus_trainers() -> list[TrainerSpec]:
    return [
        TrainerSpec(
            name="cpu",
            summary="Online training on the processor's cores.",
            target="fractus_trainers.cpu:CpuTrainer",
            devices=("cpu",),
            options=(
                Option(
                    name="optimizer",
                    default="muon",
                    choices=("muon", "adamw", "rmsprop", "sgd"),
                    help="How gradients become steps.",
                ),
                Option(
                    name="lr",
                    default=0.0,
                    minimum=0.0,
                    help="The highest learning rate; 0 is the optimizer's own.",
                ),
                Option(
                    name="warmup_steps",
                    default=100,
                    minimum=0,
                    help="Steps in which the learning rate rises to its highest.",
                ),
                Option(
                    name="decay_from",
                    default=0.3,
                    minimum=0.0,
                    maximum=0.99,
                    help="Part of the budget after which the learning rate falls.",
                ),
                Option(
                    name="final_lr",
                    default=0.05,
                    minimum=0.0,
                    maximum=1.0,
                    help="What is left of the learning rate at the end.",
                ),
                Option(
                    name="weight_decay", default=0.1, minimum=0.0, help="Decoupled weight decay."
                ),
                Option(
                    name="chunk_len",
                    default=32,
                    minimum=1,
                    help="Positions that gradients flow through before they are cut.",
                ),
                Option(name="batch_size", default=8, minimum=1, help="Streams read in parallel."),
                Option(
                    name="accumulation_steps",
                    default=1,
                    minimum=1,
                    help="Chunks whose gradients make one optimizer step.",
                ),
                Option(
                    name="clip",
                    default=1.0,
                    minimum=0.0,
                    help="The largest gradient norm; 0 leaves gradients as they are.",
                ),
                Option(
                    name="lb_coef",
                    default=0.02,
                    minimum=0.0,
                    help="Weight of the experts' load-balance loss.",
                ),
                Option(
                    name="confidence_coef",
                    default=0.1,
                    minimum=0.0,
                    help="Weight of the confidence's loss.",
                ),
                Option(
                    name="head",
                    default="dense",
                    choices=("dense", "last"),
                    help="Score every position of a chunk, or its last alone.",
                ),
                Option(
                    name="reset_probability",
                    default=0.05,
                    minimum=0.0,
                    maximum=1.0,
                    help="How likely a stream starts anew at a chunk; teaches cold starts.",
                ),
                Option(
                    name="threads",
                    default=0,
                    minimum=0,
                    maximum=1024,
                    help="Processor threads; 0 is as many as there are cores.",
                ),
                Option(
                    name="compile",
                    default=False,
                    help="Fuse operations by torch.compile: faster steps after some 20 s.",
                ),
                Option(
                    name="precision",
                    default="fp32",
                    choices=("fp32", "bf16", "auto"),
                    help="Of the computation; weights and state are always fp32.",
                ),
            ),
        )
    ]
