"""Shared by all tests: one thread per process, because two on a busy machine are slower than one.

Commands that tests start inherit the setting. ``OMP_NUM_THREADS`` overrides it.
"""

import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests run commands again with other options; that nothing is overwritten unasked is a test of its
# own (tests/cli/test_app.py).
os.environ.setdefault("LABELWISE_OVERWRITE", "1")

# A shell that starts tests in the background makes them ignore Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import setuptools  # noqa: F401  # torch's compiler needs it before anyone imports distutils

import hypothesis
import pytest
import torch
from open_indexes import count_connections, nothing_left_open
from warm_commands import WarmCommands, put_together_once, wait_for_no_disk
from warm_python import warm_interpreter

# Looked at for doctests, they would be imported by one name where several folders are run.
collect_ignore_glob = ["*conftest.py"]
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
count_connections()
put_together_once()
wait_for_no_disk()
# On a busy machine examples are drawn, and tried, slowly: no test fails for that. The same commit
# draws the same examples each time; `make fuzz` draws others.
hypothesis.settings.register_profile(
    "any weather",
    deadline=None,
    derandomize="LABELWISE_FUZZ_SEED" not in os.environ,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any weather")


def pytest_collection_modifyitems(config, items):
    """Leave out the browser where ``BROWSER=no`` says so, and run the tests of the server first.

    It forks its decoders, as a process that has just begun. After the other tests this process has
    threads of compilers, pools and process groups, which a server never has, and a process forked
    from it may die of them.
    """
    if os.environ.get("BROWSER") == "no":
        left_out = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: "server" not in item.path.parts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """Say how a process of tests ended that should not have: -9 was killed, -11 crashed."""
    if error:
        try:
            ended = f"ended with status {node.gateway._io.popen.wait(60)}"
        except subprocess.TimeoutExpired:
            ended = "is still there, and its pipe is closed"
        print(f"\n{node.gateway.id} {ended}", file=sys.__stderr__)


@pytest.fixture(scope="session")
def warm_commands():
    """Run ``labelwise`` commands in processes that need not import torch first."""
    commands = WarmCommands()
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def warm_python(warm_commands):
    """Return the path of a ``python`` whose programs need not import torch first."""
    with warm_interpreter(warm_commands) as program:
        yield program


@pytest.fixture(autouse=True)
def indexes_are_closed():
    """Fail a test that leaves an index open, or whose command or server does."""
    with nothing_left_open():
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_indexes_are_closed():
    """The same for servers that tests of a file share."""
    with nothing_left_open():
        yield
