"""What the tests of Ray share: one cluster of this machine, and what the local engine answers."""

import fcntl
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from shard_setup import started, task, write_model, write_photos
from warm_python import warm_interpreter

from labelwise.shards import LocalEngine, predict_shards, ray_cluster

SHARED = ExitStack()  # the cluster, from the first test that needs it to the last of its files
LOCK = []  # the file that this process holds while it starts clusters


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """A model, pictures, and what the local engine makes of them."""
    folder = tmp_path_factory.mktemp("ray")
    write_model(folder / "model")
    write_photos(folder / "photos", 40)
    local = task(folder / "model", folder / "local")
    predict_shards(local, [str(folder / "photos")], LocalEngine(), shard_rows=5)
    return folder


@pytest.fixture(scope="session")
def worker_python(warm_commands):
    """Return the path of a ``python`` in which Ray's workers start warm; Ray bears no fork."""
    with warm_interpreter(warm_commands, "pytest") as program:
        yield program


@pytest.fixture
def cluster(worker_python):
    """A cluster of two cores, whose workers start warm and have the keys of a bucket."""
    if ray_cluster.require_ray().is_initialized():
        return
    environment = ray_cluster.worker_environment() | {"py_executable": worker_python}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ray_cluster, "worker_environment", lambda: environment)
        patched.setenv("CUDA_VISIBLE_DEVICES", "")  # a cluster of this machine's cores alone
        patched.setenv("AWS_ACCESS_KEY_ID", "k")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "s")
        patched.setenv("RAY_prestart_worker_first_driver", "0")  # cold ones, whom nobody asks
        started(lambda: SHARED.enter_context(ray_cluster.joined(2)))


def needs_ray(item):
    return item is not None and item.path.name.startswith(("test_ray", "test_nodes"))


def pytest_runtest_setup(item):
    """Let one process of pytest start clusters at a time: two would take each other's ports."""
    if needs_ray(item) and not LOCK:
        lock = Path(tempfile.gettempdir()) / f"labelwise-ray-{os.getuid()}.lock"
        LOCK.append(lock.open("w"))
        fcntl.flock(LOCK[0], fcntl.LOCK_EX)


def pytest_runtest_teardown(item, nextitem):
    """End the cluster where the next test is of another file: waiting costs it time as well."""
    if nextitem is None or not nextitem.path.name.startswith("test_ray"):
        SHARED.close()
    if LOCK and not needs_ray(nextitem):
        LOCK.pop().close()


def pytest_sessionfinish():
    SHARED.close()  # where tests were stopped
