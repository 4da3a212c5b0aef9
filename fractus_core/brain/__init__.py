"""A brain: one set of core weights that several runs, in processes of their own, grow together."""
