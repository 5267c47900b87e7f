"""Oracle: a test that computes in a process of its own took what it computed, a sleeper did not."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cpu_durations import SPENT, CpuDurations, processes_below, processor_seconds
from patience import PATIENCE

COMPUTING = 0.4
MADE = f"""
import subprocess, sys, time
SPIN = "import time\\nwhile time.process_time() < {COMPUTING}: pass\\n"

def test_computes():
    subprocess.run([sys.executable, "-c", SPIN], check=True)

def test_starts_one_that_computes(started=[]):
    started.append(subprocess.Popen([sys.executable, "-c", SPIN + "print(flush=True)\\ninput()"],
                                    stdin=-1, stdout=-1))
    started[0].stdout.readline()

def test_sleeps():
    time.sleep({COMPUTING})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_computing_counts_wherever_it_is_done_and_waiting_does_not(tmp_path):
    (tmp_path / "test_made.py").write_text(MADE)
    hooks = "from cpu_durations import pytest_addoption, pytest_configure\n"
    (tmp_path / "conftest.py").write_text(hooks)
    command = [sys.executable, "-m", "pytest", "--cpu-durations=9", "-p", "no:cacheprovider"]
    given = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    told = {"capture_output": True, "text": True, "timeout": PATIENCE}
    done = subprocess.run([*command, "-n", "1"], cwd=tmp_path, env=given, **told)
    assert done.returncode == 0, done.stdout
    told = re.findall(r"^ +([\d.]+)  (\S+)$", done.stdout, re.MULTILINE)
    spent = {name.partition("::")[2]: float(seconds) for seconds, name in told}
    assert spent["test_computes"] > 0.9 * COMPUTING  # the clock of processes is coarse
    assert spent["test_starts_one_that_computes"] > 0.9 * COMPUTING
    assert spent["test_sleeps"] < 0.5 * COMPUTING
    assert spent[""] == pytest.approx(sum(spent.values()) - spent[""], abs=0.05)


def test_what_ends_while_it_is_looked_at_is_passed_over(monkeypatch):
    assert processes_below(0) == []  # no process has this number
    monkeypatch.setattr(os, "listdir", lambda _: ["a thread that has ended"])
    assert processes_below(os.getpid()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_test_takes_less_than_nothing():
    plugin, item = CpuDurations(1), SimpleNamespace(user_properties=[])
    plugin.begun = processor_seconds() + 60  # of a process that has ended since
    assert list(plugin.pytest_runtest_teardown(item)) == [None]
    assert item.user_properties == [(SPENT, 0.0)]
