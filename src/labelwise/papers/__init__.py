"""Experiments: methods compared fairly, and the papers' tables as runnable settings."""
