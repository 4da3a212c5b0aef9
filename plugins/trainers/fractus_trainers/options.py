"""The options of the built-in trainers. Imports no torch."""

from __future__ import annotations

from fractus_core.api import Option

ONLINE = (
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
    Option(name="weight_decay", default=0.1, minimum=0.0, help="Decoupled weight decay."),
    Option(
        name="momentum",
        default=0.9,
        minimum=0.0,
        maximum=0.999,
        help="Of sgd alone; 0 also saves its memory.",
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
        name="pgsu",
        default=0,
        minimum=0,
        help="Blocks that learn in a step, in turn; 0: all.",
    ),
    Option(
        name="ss_rate",
        default=0.0,
        minimum=0.0,
        maximum=1.0,
        help="How likely a step also practises on the model's own answers.",
    ),
    Option(
        name="ss_probability",
        default=0.2,
        minimum=0.0,
        maximum=1.0,
        help="Share of the observations that are then the model's own.",
    ),
    Option(
        name="ss_temperature",
        default=0.9,
        minimum=0.01,
        help="At which those are drawn.",
    ),
    Option(name="ss_weight", default=0.5, minimum=0.0, help="Weight of the loss on them."),
    Option(
        name="threads",
        default=0,
        minimum=0,
        maximum=1024,
        help="Processor threads; 0 is as many as there are cores.",
    ),
)
"""Of every trainer that is an `OnlineTrainer`."""

CPU = (
    *ONLINE,
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
)

GPU1B = (
    *ONLINE,
    Option(
        name="device",
        default="cuda",
        choices=("cuda", "cpu"),
        help="Where to compute; never another than this.",
    ),
    Option(
        name="precision",
        default="bf16",
        choices=("bf16", "fp32"),
        help="Of the computation; weights and state are always fp32.",
    ),
    Option(
        name="parallel",
        default="none",
        choices=("none", "ddp", "fsdp2"),
        help="How processes of torchrun share the work: rows alone, or weights and optimizer too.",
    ),
    Option(
        name="auto_batch",
        default=False,
        help="Take the largest batch_size that fits into the memory that is free.",
    ),
    Option(
        name="checkpointing",
        default=False,
        help="Keep no activations within blocks and compute them again: less memory, more time.",
    ),
    Option(
        name="compile",
        default=False,
        help="Fuse operations by torch.compile, before the budget begins.",
    ),
    Option(
        name="cuda_graphs",
        default=False,
        help="With compile: replay recorded kernels, where launching them takes the time.",
    ),
)
