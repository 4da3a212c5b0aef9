"""The learning rate over a run."""

from __future__ import annotations


def warmup_stable_decay(
    step: int, progress: float, *, warmup_steps: int, decay_from: float, final: float
) -> float:
    """The factor on the highest learning rate: up linearly, flat, down linearly.

    (Hägele et al., arXiv 2405.18392: as good as a cosine, and the flat part can be extended.)

    Args:
        step: optimizer steps made so far.
        progress: how much of the run's budget is spent, 0 to 1.
        decay_from: the progress at which the fall begins.
        final: the factor at the end.
    """
    warmup = min(1.0, (step + 1) / (warmup_steps + 1))
    if progress <= decay_from:
        return warmup
    fallen = min(1.0, (progress - decay_from) / (1 - decay_from))
    return warmup * (1 + (final - 1) * fallen)
