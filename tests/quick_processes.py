"""Processes that start in no time, for tests about what they do and not about how they start.

A spawned process imports torch and this package, which takes seconds. One of ``QUICK`` is a fork of
a process that imported them once and did nothing else: it shares no more with the test than a
spawned one does.
"""

import multiprocessing

multiprocessing.set_forkserver_preload(["labelwise.shards", "labelwise.training.run", "pytest"])
QUICK = multiprocessing.get_context("forkserver")
