"""How many logits may exist at once."""

from __future__ import annotations

MOST = 2**24


def rows_at_once(vocabulary: int) -> int:
    """Rows of logits over so many tokens, at least one."""
    return max(1, MOST // vocabulary)
