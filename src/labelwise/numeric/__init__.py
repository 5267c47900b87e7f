"""Numbers: what arrays may be, stable primitives, draws, bounds."""
