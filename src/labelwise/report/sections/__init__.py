"""One part of the page a file; each is a function from an evaluation to markup or ``None``."""
