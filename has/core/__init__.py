"""Nouns of the field: frozen, without I/O, clocks or randomness."""
