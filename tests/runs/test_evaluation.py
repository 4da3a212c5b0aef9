"""Evaluations: what a run reports on held-out data."""

from __future__ import annotations

from pathlib import Path

from running import start

from fractus_core.cli.main import main


def test_held_out_data_of_a_single_chunk(tmp_path: Path, corpus: Path) -> None:
    """Where every chunk that is read starts anew, warm streams are cold."""
    for tokens in ("1", "2048"):
        out = tmp_path / tokens
        assert (
            main(start(corpus, out, "--steps", "2", "--eval-every", "1", "--eval-tokens", tokens))
            == 0
        )
