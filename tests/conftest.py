"""Shared by all tests: one thread per process, because two on a busy machine are slower than one.

Commands that tests start inherit the setting. ``OMP_NUM_THREADS`` overrides it.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
