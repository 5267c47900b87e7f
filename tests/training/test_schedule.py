import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

from labelwise.errors import SettingsError
from labelwise.training.recipe import ScheduleKnobs
from labelwise.training.schedule import rate


def rates_of_torch(make, steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def ours(knobs, steps, per_epoch=10):
    return [rate(knobs, step, steps, per_epoch) for step in range(steps)]


@pytest.mark.parametrize("steps", [10, 37, 200])
def test_schedules_are_torchs(steps):
    cosine = rates_of_torch(lambda o: CosineAnnealingLR(o, steps), steps)
    assert ours(ScheduleKnobs("cosine"), steps) == pytest.approx(cosine)
    milestones = [-(-steps // 2), -(-3 * steps // 4)]
    step = rates_of_torch(lambda o: MultiStepLR(o, milestones), steps)
    assert ours(ScheduleKnobs("step"), steps) == pytest.approx(step)
    cycle = rates_of_torch(
        lambda o: OneCycleLR(o, 1.0, total_steps=steps + 1, pct_start=0.3, cycle_momentum=False),
        steps + 1,
    )
    assert ours(ScheduleKnobs("one-cycle", rise=0.3), steps + 1) == pytest.approx(cycle)


def test_warmup_rises_over_the_first_epochs():
    knobs = ScheduleKnobs("constant", warmup=0.5)
    assert ours(knobs, 20)[:7] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1])


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("name", ["constant", "cosine", "step", "one-cycle"])
def test_the_shortest_runs_have_finite_rates(name, steps):
    assert all(0 <= value <= 1 for value in ours(ScheduleKnobs(name), steps))


def test_bad_knobs_are_refused():
    with pytest.raises(SettingsError, match="rise must lie strictly between 0 and 1, got 1"):
        ScheduleKnobs(rise=1)
    with pytest.raises(SettingsError, match="milestones must be shares of the run"):
        ScheduleKnobs(milestones=(30, 60))
