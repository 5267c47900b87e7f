"""Two nodes of one process each, both on the loopback address, against one process.

Oracle: the run of one process with the joined batch. The processes find each other as on two
machines: by the address of the first, each started by a torchrun of its own. They share no disk.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from bucket_setup import served_bucket
from tiny_run import Hearing, tiny_settings, tiny_table
from train_tiny import break_second_epoch, free_port

from labelwise.errors import ImageError
from labelwise.models.run_folder import RunFolder, fetched_run
from labelwise.system.tensors import load_tensors
from labelwise.training.loader import Loader
from labelwise.training.run import train

SCRIPT = Path(__file__).parent.parent / "train_tiny.py"
RUNS = {"bce": {"method": "bce"}, "two-way": {"method": "two-way"}}


def on_two_nodes(folder, runs, warm_commands, warm_python):
    """Start a torchrun for each node and return their exit statuses."""
    where = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    where.append(f"--master-port={free_port()}")
    nodes = [
        warm_commands.start(
            [*where, f"--node-rank={rank}", SCRIPT, folder, json.dumps(runs)],
            folder,
            "torch.distributed.run",
            OMP_NUM_THREADS="1",
            PYTHON_EXEC=warm_python,
            GLOO_SOCKET_IFNAME="lo",
        )
        for rank in range(2)
    ]
    return [node.wait().returncode for node in nodes]


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["epoch_loss"] for record in records if "epoch_loss" in record]


def assert_same(one, other):
    assert len(losses(one)) == 3
    torch.testing.assert_close(losses(one), losses(other), atol=1e-6, rtol=1e-6)
    first, second = (load_tensors(folder / "model.safetensors") for folder in (one, other))
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], atol=1e-6, rtol=1e-6)


def cut_short(settings, folder):
    """Train in this process until the second epoch, which cannot be read."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Loader, "epoch", Loader.epoch)  # put back at the end
        break_second_epoch()
        with pytest.raises(ImageError, match="ends early"):
            train(settings, folder, table=tiny_table())


@pytest.mark.filterwarnings("ignore")  # of boto3 and moto
def test_two_nodes_train_as_one_and_go_on_where_one_was_cut_short_and_one_where_two_were(
    tmp_path, monkeypatch, warm_commands, warm_python
):
    """The first run that was cut short is in a folder of the first node, the second in a bucket."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two, bce = tmp_path / "one", tmp_path / "two", {"method": "bce"}
    with served_bucket() as bucket:
        kept = bucket.place("runs/kept")
        for place in (two / "begun", kept):
            with RunFolder.working_in(place) as run:
                cut_short(tiny_settings(**bce), run)
        cut = bce | {"fails_in": 0}  # in the second epoch, on both nodes
        runs = RUNS | {"begun": bce, "kept": bce | {"place": kept}, "cut": cut}
        assert on_two_nodes(two, runs, warm_commands, warm_python) == [1, 1]
        shutil.copytree(fetched_run(kept), two / "kept")
    for name, flags in RUNS.items():
        train(tiny_settings(**flags), one / name, table=tiny_table())
        assert_same(two / name, one / name)
    watch = Hearing()
    train(tiny_settings(**bce), two / "cut", table=tiny_table(), watch=watch)
    assert "going on from epoch 2, batch 1" in watch.messages
    for name in ("begun", "kept", "cut"):
        assert_same(two / name, one / "bce")
    assert not [path for path in (two / "elsewhere").rglob("*") if path.is_file()]
