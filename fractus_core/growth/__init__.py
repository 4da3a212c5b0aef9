"""Growth: a trained engine made larger, and still the same function or nearly so."""
