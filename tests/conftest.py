"""Shared by all tests: one thread a process, because two on a busy machine are slower than one."""

import torch

torch.set_num_threads(1)
