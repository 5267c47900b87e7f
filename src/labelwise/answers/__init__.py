"""What people said about photos: the log, what they agree on, what to ask, suspects and repairs."""
