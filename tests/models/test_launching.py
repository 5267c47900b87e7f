"""Networks that a GPU launches whole; the oracle is the network itself, kernel by kernel."""

import pytest
import torch
from torch import Tensor, nn

from labelwise.models import scoring as launching
from labelwise.models.scoring import captured, launch, one_thread

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network(device: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 3)
    return nn.Sequential(*layers).eval().to(device)


def pixels(count: int, device: str) -> Tensor:
    values = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))
    return values.to(device).contiguous(memory_format=torch.channels_last)


def test_values_on_the_cpu_are_there_at_once():
    values = torch.arange(6.0).reshape(2, 3)
    assert launch((values,), CPU).wait() == (values,)
    assert launch((), CPU).wait() == ()


def test_one_thread_computes_inside_the_block_and_as_many_as_before_after_it():
    def broken() -> None:
        with one_thread():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError):
            broken()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_network_that_cannot_be_captured_computes_as_before(monkeypatch):
    def refused(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(launching, "_capture", refused)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    net = network("cpu")
    assert captured(net, pixels(2, "cpu")) is net


@on_gpu
@torch.inference_mode()
def test_a_graph_has_the_values_of_its_network_and_takes_every_other_batch_too():
    net = network("cuda")

    def both(inputs: Tensor) -> tuple[Tensor, ...]:
        return net(inputs), inputs.mean(dim=(1, 2, 3))

    graph = captured(both, pixels(4, "cuda"))
    assert graph is not both
    first, second = pixels(4, "cuda"), pixels(4, "cuda").flip(0)
    found = [graph(first), graph(second), graph(pixels(3, "cuda")), graph(first.contiguous())]
    wanted = [both(first), both(second), both(pixels(3, "cuda")), both(first.contiguous())]
    for ours, theirs in zip(found, wanted, strict=True):
        assert all(map(torch.equal, ours, theirs))
    host, _ = launch(found[0], torch.device("cuda")).wait()
    assert torch.equal(host, wanted[0][0].cpu())
    assert not host.is_pinned()


@on_gpu
@torch.inference_mode()
def test_a_network_that_waits_for_the_gpu_computes_as_before_and_so_does_the_next():
    net = network("cuda")

    def waits(inputs: Tensor) -> tuple[Tensor, ...]:
        return (net(inputs) * inputs.sum().item(),)

    inputs = pixels(4, "cuda")
    assert captured(waits, inputs) is waits
    assert torch.equal(waits(inputs)[0], net(inputs) * inputs.sum().item())
    graph = captured(lambda given: (net(given),), inputs)
    assert torch.equal(graph(inputs)[0], net(inputs))
