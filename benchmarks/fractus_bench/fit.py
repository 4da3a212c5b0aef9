"""A power law through points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def power_law(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Factor and exponent of the y = factor x^exponent that is nearest to y, in logarithms."""
    exponent, logarithm = np.polyfit(np.log(x), np.log(y), 1)
    return float(np.exp(logarithm)), float(exponent)
