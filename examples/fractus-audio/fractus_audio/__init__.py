"""Sounds for Fractus: wav files as sequences of vectors, and classes as answers."""
