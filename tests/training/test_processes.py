"""Starting processes. Oracles: their exit statuses, torchrun's variables, one process."""

import sys
from types import ModuleType

import pytest

from labelwise.errors import SettingsError
from labelwise.training.execution import STARTED, _srun_variables, launch
from labelwise.training.settings import Hardware

ALONE = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def srun(task, port):
    """Return what srun tells a task of two on one node."""
    return {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "node7",
        "SLURM_JOB_ID": "4711",
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("node7", "node7"), ("n[03-05,9],m1", "n03"), ("gpu[8]", "gpu8"), ("a,b[1-2]", "a")],
)
def test_the_variables_of_srun_are_those_of_torchrun(nodes, first):
    given = {
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_JOB_ID": "1234567",
        "SLURM_PROCID": "6",
        "SLURM_LOCALID": "2",
    }
    assert _srun_variables(given) == {
        STARTED: "1234567",
        "MASTER_ADDR": first,
        "MASTER_PORT": "19567",
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
    }
    assert _srun_variables(given | {"SLURM_STEP_NUM_TASKS": "1"}) == {}
    assert _srun_variables(given | {STARTED: "by a torchrun in each task"}) == {}
    assert _srun_variables({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) == {}  # no srun, a batch


def test_when_a_process_dies_the_first_does_not_wait_for_it_forever(tmp_path, warm_commands):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import sys, threading\n"
        "from labelwise.system.distributed import rank\n"
        "from labelwise.training import execution\n"
        "from labelwise.training.settings import Hardware\n"
        "execution.GRACE = 0\n"
        "execution.launch(Hardware(accelerator='cpu', devices=3))\n"
        "sys.exit(7) if rank() == 2 else threading.Event().wait()\n"
    )
    done = warm_commands.start([], tmp_path, script, **ALONE).wait()
    assert done.returncode == 1
    assert "labelwise: process 3 of the run ended with status 7" in done.stderr


def test_a_program_that_cannot_be_started_again_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # as of python -c
    with pytest.raises(SettingsError, match="several devices need a program that can be started"):
        launch(Hardware(accelerator="cpu", devices=2))
