import pytest
import torch
from torch import nn

from labelwise.training.ema import Average


def test_average_is_the_recurrence_written_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    average = Average(model, 0.3)
    expected = {name: value.clone().double() for name, value in model.state_dict().items()}
    for update in range(1, 6):
        model(torch.randn(2, 3, 4, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        decay = min(0.3, (1 + update) / (10 + update))
        for name, value in model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * value.double()
        average.update(model)
    for name, value in average.model.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), expected[name], atol=1e-6, rtol=1e-5)
    assert average.model[1].num_batches_tracked == 5
    assert not average.model.training


def test_decay_must_be_a_share():
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 1"):
        Average(nn.Linear(1, 1), 1)
