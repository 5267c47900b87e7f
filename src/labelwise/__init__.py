"""Train, calibrate, decide and search with images that carry no label, one, or many."""

__version__ = "0.1.0"
