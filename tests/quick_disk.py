"""Tests do not wait until what they wrote has reached the disk: no power fails in between.

A killed process loses nothing of what it wrote, synced or not. What is synced, and what happens
where that fails, tests see at ``os.fsync``, which is called as ever.
"""

import os


def wait_for_no_disk() -> None:
    """Have ``os.fsync`` look at the file and no more, in this process and those forked from it."""

    def looked_at(file) -> None:
        os.fstat(file if isinstance(file, int) else file.fileno())

    os.fsync = looked_at
