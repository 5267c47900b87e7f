"""Processes that start in no time, for tests about what they do and not about how they start.

A spawned process imports torch and this package, which takes seconds. One of ``QUICK`` is a fork of
a process that imported them once and did nothing else: it shares no more with the test than a
spawned one does.
"""

import multiprocessing

PRELOADED = ["labelwise.shards", "labelwise.training.run", "labelwise.papers.jobs", "pytest"]
multiprocessing.set_forkserver_preload(PRELOADED)
QUICK = multiprocessing.get_context("forkserver")
