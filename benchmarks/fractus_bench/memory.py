"""How much memory torch's tensors take at the worst moment of a call."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch.profiler import ProfilerActivity, profile


def peak_mb(call: Callable[[], object]) -> float:
    """Megabytes allocated at once during a call, beyond what there was before it.

    Counted by torch's allocator, so that it does not depend on what was measured before, as the
    size of the process would.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_bytes())["traceEvents"]
    changes = [e["args"] for e in events if e.get("name") == "[memory]"]
    if not changes:
        return 0.0
    before = changes[0]["Total Allocated"] - changes[0]["Bytes"]
    return float(max(change["Total Allocated"] for change in changes) - before) / 1e6
