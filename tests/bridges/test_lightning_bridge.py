"""Lightning. Oracles: a plain training loop with the same objective; the joined batch; metrics."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from labelwise.errors import SettingsError
from labelwise.learn.objectives import BCE, ROLE, SPA, TwoWay
from labelwise.metrics import average_precision
from labelwise.types import Outputs, Targets

lightning = pytest.importorskip(
    "labelwise.contrib.lightning", reason="lightning is not installed", exc_type=ImportError
)
pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning: workers, missing loaders


def rows(count=24, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.normal(size=(count, 5)).astype(np.float32))
    labels = (x[:, :3] + 0.5 * torch.from_numpy(rng.normal(size=(count, 3))).float() > 0.2).float()
    return x, labels, torch.from_numpy(rng.random((count, 3)) < 0.8), torch.arange(count)


def network():
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def trainer(folder, **options):
    settings = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "logger": False}
    settings |= {"default_root_dir": folder, "num_sanity_val_steps": 0}
    off = ("enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return lightning.Trainer(**settings | dict.fromkeys(off, False) | options)


def by_hand(model, objective, batches, lr=0.01):
    """Train as anyone would without Lightning."""
    module = lightning.MultilabelModule(model, objective, lr=lr)  # for its groups of parameters
    optimizer = module.configure_optimizers()
    for images, *targets in batches:
        optimizer.zero_grad()
        objective(Outputs(model(images)), Targets(*targets)).backward()
        optimizer.step()
        objective.step(lr)
    return model


@pytest.mark.parametrize(
    ("make", "parts"),
    [(BCE, 2), (SPA, 3), (TwoWay, 2), (lambda: ROLE(24, 3, 1.2), 4)],
    ids=["bce", "spa, unknown labels", "two-way", "role, which keeps rows"],
)
def test_it_trains_as_a_plain_loop_does(make, parts, tmp_path):
    data = TensorDataset(*rows()[:parts])
    module = lightning.MultilabelModule(network(), make(), lr=0.01)
    trainer(tmp_path, max_epochs=2).fit(module, DataLoader(data, batch_size=8))
    batches = [*DataLoader(data, batch_size=8)] * 2
    expected = by_hand(network(), make(), batches)
    torch.testing.assert_close(module.network.weight, expected.weight)
    assert not torch.equal(module.network.weight, network().weight)


def test_probabilities_are_the_links_and_metrics_are_logged(tmp_path):
    x, labels, observed, _ = rows()
    module = lightning.MultilabelModule(network(), SPA())
    loader = DataLoader(TensorDataset(x, labels, observed), batch_size=8)
    run = trainer(tmp_path, callbacks=[lightning.MultilabelMetrics()])
    logged = run.validate(module, loader, verbose=False)[0]
    with torch.no_grad():
        logits = module.network(x)
    expected = average_precision(logits, labels, observed).value
    assert logged["val_map"] == pytest.approx(expected, abs=1e-6)
    probs = SPA().link(logits)
    bins = torch.ceil(10 * probs).clamp(min=1)[observed]
    gaps = (probs - labels)[observed]
    total = sum(abs(float(gaps[bins == one].sum())) for one in bins.unique())
    assert logged["val_ece"] == pytest.approx(total / len(bins), abs=1e-6)
    found = torch.cat(run.predict(module, DataLoader(x, batch_size=8)))
    torch.testing.assert_close(found, probs)


def test_what_would_change_the_method_is_refused(tmp_path):
    loader = DataLoader(TensorDataset(*rows()[:2]), batch_size=8)
    module = lightning.MultilabelModule(network(), TwoWay())
    with pytest.raises(SettingsError, match="couples the images of a batch"):
        trainer(tmp_path, accumulate_grad_batches=2).fit(module, loader)
    with pytest.raises(Exception, match="calibrate"):
        trainer(tmp_path).predict(module, DataLoader(rows()[0], batch_size=8))
    wrong = DataLoader(TensorDataset(rows()[0], 2 * rows()[1]), batch_size=8)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 1\]"):
        trainer(tmp_path).fit(lightning.MultilabelModule(network(), BCE()), wrong)
    with pytest.raises(ValueError, match="a batch must be"):
        trainer(tmp_path).fit(module, DataLoader(rows()[0], batch_size=8))


TWO_PROCESSES = """
import sys

sys.path.insert(0, sys.argv[1])
from test_lightning_bridge import *

x, labels, *_ = rows(16)
module = lightning.MultilabelModule(network(), TwoWay(), lr=0.01)
loader = DataLoader(TensorDataset(x, labels), batch_size=8)
trainer(".", devices=2, strategy="ddp_fork").fit(module, loader)
torch.save(module.network.weight, "weight.pt")
"""


def test_two_processes_train_as_one_with_the_joined_batch(tmp_path, warm_commands):
    (tmp_path / "two.py").write_text(TWO_PROCESSES)
    done = warm_commands.run([Path(__file__).parent], tmp_path, tmp_path / "two.py")
    assert done.returncode == 0, done.stderr
    x, labels, *_ = rows(16)
    joined = by_hand(network(), TwoWay(), [(x, labels)])
    found = torch.load(tmp_path / "weight.pt", weights_only=True)
    torch.testing.assert_close(found, joined.weight, atol=1e-6, rtol=1e-5)
