"""``--cpu-durations=N``: the N tests that took most processor time, and what each folder took.

Counted is the time of the process that runs tests and of all below it. What a shared fixture takes
is counted for the test that asks first; that of a process for which nobody waits is lost.
"""

import os
from collections import Counter
from contextlib import suppress

import pytest

SPENT = "processor seconds"


def pytest_addoption(parser):
    parser.addoption(
        "--cpu-durations", type=int, metavar="N", help="show what took most processor time"
    )


def pytest_configure(config):
    if shown := config.getoption("--cpu-durations"):
        config.pluginmanager.register(CpuDurations(shown))


def processes_below(number):
    """Return the processes that this one started, and those that they did."""
    found, threads = [], f"/proc/{number}/task"
    with suppress(OSError):  # it has just ended
        for name in os.listdir(threads):
            with suppress(OSError), open(f"{threads}/{name}/children", "rb") as file:
                for child in map(int, file.read().split()):
                    found += [child, *processes_below(child)]
    return found


def processor_seconds():
    """Return what this process and all below it, ended or not, took until now."""
    import resource  # not on every system

    total, ticks = 0.0, os.sysconf("SC_CLK_TCK")
    for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        used = resource.getrusage(whose)
        total += used.ru_utime + used.ru_stime
    for process in processes_below(os.getpid()):
        with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            total += sum(map(int, fields[11:15])) / ticks  # its own, and of those it waited for
    return total


class CpuDurations:
    """Measures where tests run; adds up where they are told."""

    def __init__(self, shown):
        self.shown, self.spent, self.begun = shown, Counter(), None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self):
        if self.begun is None:  # else the end of one test is the beginning of the next
            self.begun = processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        try:
            return (yield)
        finally:
            now = processor_seconds()
            item.user_properties.append((SPENT, max(0.0, now - self.begun)))
            self.begun = now

    def pytest_runtest_logreport(self, report):
        if report.when == "teardown":
            self.spent[report.nodeid] += dict(report.user_properties).get(SPENT, 0.0)

    def pytest_terminal_summary(self, terminalreporter):
        folders = Counter()
        for test, seconds in self.spent.items():
            folders[test.partition("::")[0].rpartition("/")[0] or "."] += seconds
        terminalreporter.section(f"{sum(self.spent.values()):.0f} {SPENT}, children included")
        for spent in (folders, self.spent):
            for name, seconds in spent.most_common(self.shown):
                terminalreporter.line(f"{seconds:8.2f}  {name}")
