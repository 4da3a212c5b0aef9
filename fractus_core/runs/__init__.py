"""Runs: their directory, checkpoints, metrics, budget and loop."""
