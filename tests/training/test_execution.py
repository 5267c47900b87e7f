"""The loss of a batch as one function, against the same formulas written out."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from labelwise.models import Model
from labelwise.networks.backbones import create_backbone
from labelwise.networks.heads import LinearHead
from labelwise.objectives import BCE
from labelwise.training import execution
from labelwise.training.execution import accelerated, compiles, kernels
from labelwise.training.settings import Hardware
from labelwise.types import Targets


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model(create_backbone("identity", channels=6), LinearHead(6, 3))


def loss_function(model, **how):
    objective = BCE()
    return accelerated(lambda images, targets: objective(model(images), targets), **how)


def batch() -> tuple[torch.Tensor, Targets]:
    generator = torch.Generator().manual_seed(1)
    labels = (torch.rand(8, 3, generator=generator) < 0.4).float()
    return torch.randn(8, 6, generator=generator), Targets(labels, index=torch.arange(8))


def test_the_loss_and_its_gradient_are_the_objectives(model):
    images, targets = batch()
    loss_function(model)(images, targets).backward()
    gradient = model.head.classifier.weight.grad.clone()
    model.zero_grad()
    logits = model.head.classifier(images)
    expected = binary_cross_entropy_with_logits(logits, targets.labels)
    expected.backward()
    torch.testing.assert_close(loss_function(model)(images, targets), expected)
    torch.testing.assert_close(gradient, model.head.classifier.weight.grad)


def test_half_precision_reaches_the_model_but_not_the_objective(model):
    images, targets = batch()
    seen = []
    model.head.register_forward_hook(lambda *call: seen.append(call[2].logits.dtype))
    loss = loss_function(model, precision=torch.bfloat16)(images, targets)
    assert seen == [torch.bfloat16]
    assert loss.dtype == torch.float32


@pytest.mark.parametrize(
    ("asked", "device", "world", "steps", "expected"),
    [
        (None, "cuda", 1, 2000, True),
        (None, "cuda", 1, 1999, False),
        (None, "cuda", 2, 2000, False),
        (None, "cpu", 1, 10**6, False),
        (True, "cpu", 1, 1, True),
        (False, "cuda", 1, 10**6, False),
    ],
)
def test_long_runs_on_one_gpu_are_compiled(asked, device, world, steps, expected):
    found, why = compiles(Hardware(compile=asked), torch.device(device), world, steps)
    assert found is expected
    assert bool(why) == (asked is None and device == "cuda" and world == 1)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_the_function_compiles_without_a_break(model, precision):
    images, targets = batch()
    plain = loss_function(model, precision=precision)
    graph = torch.compile(
        lambda images, labels: plain(images, Targets(labels)), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(graph(images, targets.labels), plain(images, targets))


def test_options_of_the_compiler_are_those_that_this_torch_knows(monkeypatch):
    """Oracle: torch's own list; it refuses an option that is not there."""
    known = torch._inductor.list_options()
    assert "triton.autotune_pointwise" in known  # else nothing would be said by what follows
    monkeypatch.setitem(execution.FEWER_TRIALS, "no_such_option", False)
    options = execution._for_cuda()
    assert options.keys() <= {*known}
    assert {
        "triton.cudagraphs": True,
        "triton.autotune_pointwise": False,
    }.items() <= options.items()


def test_a_deterministic_run_is_compiled_only_if_asked_for():
    cuda = torch.device("cuda")
    assert not compiles(Hardware(), cuda, 1, 10**6, deterministic=True)[0]
    assert compiles(Hardware(compile=True), cuda, 1, 1, deterministic=True)[0]


@pytest.mark.parametrize("deterministic", [True, False])
def test_kernels_are_chosen_inside_the_block_alone(deterministic):
    before = torch.backends.cudnn.benchmark
    with kernels(deterministic=deterministic):
        assert torch.are_deterministic_algorithms_enabled() == deterministic
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.benchmark != deterministic
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark == before
