"""One thread, so that times and rounding do not depend on the machine."""

from __future__ import annotations

import hypothesis
import torch

torch.set_num_threads(1)
# Drawn examples are the same at each run: a suite that fails by chance is soon ignored.
hypothesis.settings.register_profile("fractus", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fractus")
