"""The built-in trainers."""
