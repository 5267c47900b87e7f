"""ROLE against golden vectors and against torch's dense Adam over all rows."""

from functools import cache
from math import log

import pytest
import torch
from golden import assert_golden, cases, tensor
from torch import nn

from labelwise.errors import CheckpointError
from labelwise.objectives import ROLE, role_loss
from labelwise.objectives.adam_rows import SETTLED, WINDOW, advance, exact_sum, settled_sum, update
from labelwise.objectives.estimates import KNOWN_LOGIT, Start, logits_of
from labelwise.objectives.undo import UndoFile
from labelwise.types import Outputs, Targets

N, K, B, LR = 400, 3, 2, 0.01
STEPS = 2 * WINDOW + 40


def golden_inputs(case):
    inputs = case["inputs"]
    return [torch.logit(tensor(inputs[key])) for key in ("preds", "estimated")] + [
        tensor(inputs["labels_obs"])
    ]


def dataset(seed=0):
    """Return classifier weights, features, labels, observed: one positive known, some absent."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(N, 4, generator=generator)
    labels = torch.zeros(N, K)
    labels[torch.arange(N), torch.randint(K, (N,), generator=generator)] = 1
    observed = (labels == 1) | (torch.rand(N, K, generator=generator) < 0.2)
    return torch.randn(K, 4, generator=generator), features, labels, observed


def batches(steps, rows=N):
    """Return row numbers: few rows at first, so that most miss more steps than the window."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(rows, (B,), generator=generator) for _ in range(steps)]


def rate(step):
    return LR * (1 + step % 3)


def train(objective, steps, *, start=0, weight=None, optimizer=None):
    """Train a linear model with ``objective``; return the model, ready to go on."""
    initial, features, labels, observed = dataset()
    weight = nn.Parameter(initial.clone()) if weight is None else weight
    groups = [{"params": [weight], "scale": 1.0}]
    if list(objective.parameters()):
        groups.append({"params": list(objective.parameters()), "scale": objective.lr_scale})
    optimizer = optimizer or torch.optim.Adam(groups, lr=LR)
    for step, index in list(enumerate(batches(steps)))[start:]:
        for group in optimizer.param_groups:
            group["lr"] = rate(step) * group["scale"]
        optimizer.zero_grad()
        targets = Targets(labels[index], observed[index], index)
        objective(Outputs(features[index] @ weight.T), targets).backward()
        optimizer.step()
        objective.step(rate(step))
    return weight, optimizer


def reference(steps):
    """Return theta (N, K) and classifier after the recipe of the public code: one dense Adam."""
    weight, features, labels, observed = dataset()
    weight = nn.Parameter(weight.clone())
    start = torch.where(
        observed, KNOWN_LOGIT * (2 * labels - 1), Start().logits(torch.arange(N), K)
    )
    theta = nn.Parameter(start)
    optimizer = torch.optim.Adam([{"params": [weight]}, {"params": [theta]}])
    for step, index in enumerate(batches(steps)):
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.param_groups[1]["lr"] = 10 * rate(step)
        optimizer.zero_grad()
        present = labels[index] * observed[index]
        sum(role_loss(features[index] @ weight.T, theta[index], present, 1.5)).backward()
        optimizer.step()
    return theta.detach(), weight.detach()


@pytest.mark.parametrize("eps_mode", ["code", "stable"])
def test_golden_value(eps_mode):
    case = cases("mlspl_role")["2x4"]
    main, reg = role_loss(*golden_inputs(case), 2.0, eps_mode)
    assert_golden(reg, case["expected"]["reg"])
    total = {"code": "total", "stable": "total_with_eps0"}[eps_mode]
    assert_golden(main + reg, case["expected"][total])


def test_golden_gradients():
    (case,) = (case for name, case in cases("mlspl_role").items() if "gradients" in name)
    logits, theta, labels = golden_inputs(case)
    logits.requires_grad_(), theta.requires_grad_()
    sum(role_loss(logits, theta, labels, 2.0, "code")).backward()
    assert_golden(logits.grad, case["expected"]["grad_classifier_logits"])
    assert_golden(theta.grad, case["expected"]["grad_theta"])


def test_golden_start():
    case, places = cases("role_init").values()
    assert case["expected"]["observed_pos_logit"] == pytest.approx(KNOWN_LOGIT, rel=1e-12)
    assert case["expected"]["clip_logit"] == pytest.approx(logits_of(tensor(1.0)).item(), rel=1e-9)
    r = tensor(places["inputs"]["r"])
    assert_golden(Start().between(r), places["expected"]["logit"])
    assert_golden(torch.sigmoid(Start().between(r)), places["expected"]["prob"])
    low, high = case["expected"]["unobserved_logit_range"]
    start = Start(seed=5).logits(torch.arange(300), 7)
    assert low <= start.min() < 0.99 * low
    assert 0.99 * high < start.max() <= high
    assert torch.equal(Start(seed=5).logits(torch.tensor([7]), 7), start[7:8])


def test_classifier_and_estimates_are_exchangeable():
    logits, theta, labels = golden_inputs(cases("mlspl_role")["2x4"])
    torch.testing.assert_close(
        role_loss(logits, theta, labels, 2.0), role_loss(theta, logits, labels, 2.0)
    )


def test_first_batch_starts_observed_entries_where_they_are_known():
    labels = torch.tensor([[1.0, 0.0, 0.0]])
    observed = torch.tensor([[True, True, False]])
    for table in ("dense", "memory", "device"):
        objective = ROLE(5, 3, 1.5, table=table, seed=2)
        before = objective.estimates(torch.tensor([4]))
        objective(Outputs(torch.zeros(1, 3)), Targets(labels, observed, torch.tensor([4])))
        objective.step(0.0)
        after = objective.estimates(torch.tensor([4]))
        torch.testing.assert_close(after[0, :2], torch.tensor([0.995, 0.005]))
        assert after[0, 2] == before[0, 2]


@cache
def straight(table):
    """Return an objective that was trained without a break, and the weight trained with it."""
    objective = ROLE(N, K, 1.5, table=table)
    return objective, train(objective, STEPS)[0].detach()


def test_every_table_follows_dense_adam():
    theta, weight = reference(STEPS)
    visited = torch.cat(batches(STEPS)).unique()
    assert len(visited) < N
    for table, tolerance in (("dense", 0.0), ("memory", 1e-5), ("device", 1e-5)):
        objective, found = straight(table)
        torch.testing.assert_close(found, weight, rtol=tolerance, atol=tolerance)
        off = (objective.estimates(visited) - theta[visited].sigmoid()).abs()
        assert off.quantile(0.99) <= tolerance
        assert off.max() <= 100 * tolerance  # where a gradient is rounding, Adam makes it a step
    moved = (theta - reference(0)[0]).abs().max()
    assert moved > 0.5  # the agreement is not that of two tables at rest


def test_rows_made_up_later_are_where_torch_adam_has_them():
    rows, steps = 12, 3 * WINDOW
    generator = torch.Generator().manual_seed(0)
    theta = nn.Parameter(torch.randn(rows, 2, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.Adam([theta])
    state = torch.stack([theta.detach(), *torch.zeros(2, rows, 2, dtype=torch.float64)])
    last, clock = torch.zeros(rows, dtype=torch.int64), torch.tensor(0)
    rates = torch.zeros(2 * steps, dtype=torch.float64)
    for step in range(1, steps + 1):
        lr = optimizer.param_groups[0]["lr"] = rate(step)
        row = [int(torch.randint(rows if step < 40 else 2, (), generator=generator))]
        # From ordinary gradients down to those that drown in Adam's eps.
        scale = 10.0 ** -(row[0] % 10)
        gradient = scale * torch.randn(1, 2, generator=generator, dtype=torch.float64)
        theta.grad = torch.zeros_like(theta).index_copy_(0, torch.tensor(row), gradient)
        optimizer.step()
        moved = advance(state[:, row], last[row], clock, rates)
        state[:, row], last[row] = update(moved, gradient, step, lr), step
        rates[step], clock = lr, clock + 1
    found = advance(state, last, clock, rates)
    torch.testing.assert_close(found[0], theta.detach(), rtol=0, atol=1e-7)
    for moment, name in ((found[1], "exp_avg"), (found[2], "exp_avg_sq")):
        torch.testing.assert_close(moment, optimizer.state[theta][name], rtol=1e-9, atol=0)
    assert (theta.detach() - state[0]).abs().max() > 0.1  # there was motion to make up


def test_the_series_for_settled_rows_is_the_sum():
    last = torch.tensor([SETTLED, SETTLED + 50, 5000, 10**6])
    root = 10.0 ** torch.linspace(-12, 2, 60, dtype=torch.float64).expand(4, 60)
    ages = torch.arange(1.0, WINDOW + 1, dtype=torch.float64).unsqueeze(1)
    a = torch.rand(WINDOW, 4, dtype=torch.float64) * 0.9**ages / (1 - 0.9 ** (last + ages))
    b = (0.999**ages / (1 - 0.999 ** (last + ages))).sqrt()
    slow = exact_sum(a, b, root)
    torch.testing.assert_close(settled_sum(a, b, root), slow, rtol=3e-7, atol=0)
    assert (settled_sum(0 * a, b, root) == 0).all()


def test_an_image_twice_in_a_batch_counts_twice():
    labels, index = torch.eye(3)[[0, 1, 0]], torch.tensor([2, 0, 2])
    logits = torch.tensor([[0.3, 1.0, -2.0], [1.0, 0.0, 0.5], [-1.0, 0.2, 0.7]])
    found = []
    for table in ("dense", "memory", "device"):
        objective = ROLE(3, 3, 1.5, table=table)
        optimizer = torch.optim.Adam(list(objective.parameters()) or [torch.zeros(1)], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            scores = logits.clone().requires_grad_()
            objective(Outputs(scores), Targets(labels, labels == 1, index)).backward()
            optimizer.step()
            objective.step(0.01)
        found.append(objective.estimates(torch.arange(3)))
    for other in found[1:]:
        torch.testing.assert_close(found[0][[0, 2]], other[[0, 2]])


def test_a_file_is_the_memory_bit_for_bit(tmp_path):
    memory, file = ROLE(N, K, 1.5), ROLE(N, K, 1.5, table=tmp_path / "new" / "estimates")
    for objective in (memory, file):
        train(objective, 50)
    rows = torch.arange(N)
    assert torch.equal(memory.estimates(rows), file.estimates(rows))
    assert (tmp_path / "new" / "estimates").stat().st_size == 4 * N * (3 * K + 1)
    assert set(file.state_dict()) == {"table.clock", "table.rates"}


@pytest.mark.parametrize("kind", ["dense", "memory", "device", "file"])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, kind):
    table = tmp_path / "estimates" if kind == "file" else kind
    first = ROLE(N, K, 1.5, table=table)
    weight, optimizer = train(first, 20)
    train(first, 40, start=20, weight=weight, optimizer=optimizer)
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    kept = weight.detach().clone()
    state = optimizer.state_dict()
    state = {
        **state,
        "state": {k: {n: v.clone() for n, v in s.items()} for k, s in state["state"].items()},
    }
    train(first, 70, start=40, weight=weight, optimizer=optimizer)  # lost with the process
    if kind == "file":
        journal = tmp_path / "estimates.undo-40"
        journal.write_bytes(journal.read_bytes() + b"half an entry")
    del first
    resumed = ROLE(N, K, 1.5, table=table)
    resumed.load_state_dict(saved)
    weight, optimizer = nn.Parameter(kept), None
    groups = [{"params": [weight], "scale": 1.0}]
    if kind == "dense":
        groups.append({"params": list(resumed.parameters()), "scale": 10.0})
    optimizer = torch.optim.Adam(groups, lr=LR)
    optimizer.load_state_dict(state)
    train(resumed, 60, start=40, weight=weight, optimizer=optimizer)
    straight = ROLE(N, K, 1.5, table="memory" if kind == "file" else kind)
    expected, _ = train(straight, 60)
    assert torch.equal(weight, expected)
    assert torch.equal(resumed.estimates(torch.arange(N)), straight.estimates(torch.arange(N)))


def test_the_file_goes_back_to_the_last_two_marks_and_to_the_start(tmp_path):
    objective = ROLE(N, K, 1.5, table=tmp_path / "estimates")
    states, snapshots = [], []
    for steps in (10, 20, 30):
        train(objective, steps, start=steps - 10)
        states.append({name: value.clone() for name, value in objective.state_dict().items()})
        snapshots.append(objective.estimates(torch.arange(N)))
    train(objective, 35, start=30)
    for number in (2, 1):
        again = ROLE(N, K, 1.5, table=tmp_path / "estimates")
        again.load_state_dict(states[number])
        assert torch.equal(again.estimates(torch.arange(N)), snapshots[number])
    lost = ROLE(N, K, 1.5, table=tmp_path / "estimates")
    lost.load_state_dict(states[0])
    with pytest.raises(CheckpointError, match="estimates has no way back to step 10"):
        lost.estimates(torch.arange(2))
    with pytest.raises(CheckpointError, match="no way back to step 0"):
        train(ROLE(N, K, 1.5, table=tmp_path / "estimates"), 1)


def test_a_row_changed_after_each_of_two_marks_goes_back_to_either(tmp_path):
    file = UndoFile(tmp_path / "table", (3, 2))
    file.rewind(0)
    for step in (1, 2, 3):
        file.write(torch.tensor([1]), torch.full((1, 2), float(step)), step)
        if step < 3:
            file.mark(step)
    again = UndoFile(tmp_path / "table", (3, 2))
    assert again.records[1].tolist() == [3, 3]
    again.rewind(1)
    assert again.records.tolist() == [[0, 0], [1, 1], [0, 0]]


def test_looking_at_a_fresh_state_does_not_harm_the_file_of_a_run(tmp_path):
    objective = ROLE(N, K, 1.5, table=tmp_path / "estimates")
    train(objective, 10)
    state = {name: value.clone() for name, value in objective.state_dict().items()}
    expected = objective.estimates(torch.arange(N))
    resumed = ROLE(N, K, 1.5, table=tmp_path / "estimates")
    resumed.state_dict()
    resumed.load_state_dict(state)
    assert torch.equal(resumed.estimates(torch.arange(N)), expected)


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    train(ROLE(N, K, 1.5, table=tmp_path / "estimates"), 10)
    again, straight = ROLE(N, K, 1.5, table=tmp_path / "estimates"), ROLE(N, K, 1.5)
    for objective in (again, straight):
        train(objective, 10)
    assert torch.equal(again.estimates(torch.arange(N)), straight.estimates(torch.arange(N)))


def test_a_deleted_table_leaves_nothing_behind(tmp_path):
    train(ROLE(N, K, 1.5, table=tmp_path / "estimates"), 10)
    (tmp_path / "estimates").unlink()
    again = ROLE(N, K, 1.5, table=tmp_path / "estimates")
    fresh = ROLE(N, K, 1.5)
    assert torch.equal(again.estimates(torch.arange(N)), fresh.estimates(torch.arange(N)))
    again.load_state_dict({**again.state_dict(), "table.clock": torch.tensor(10)})
    with pytest.raises(CheckpointError, match="no way back to step 10"):
        again.estimates(torch.arange(2))


def test_a_file_of_another_size_is_refused(tmp_path):
    ROLE(N, K, 1.5, table=tmp_path / "estimates")
    with pytest.raises(CheckpointError, match=r"must hold 400 x 16 numbers .* name another file"):
        ROLE(N, 5, 1.5, table=tmp_path / "estimates")


def test_a_device_table_compiles_to_one_graph_that_writes_nothing():
    objective = ROLE(N, K, 1.5, table="device")
    _, _, labels, observed = dataset()
    index = torch.tensor([3, 9])
    before = {name: value.clone() for name, value in objective.named_buffers()}
    run = torch.compile(objective, fullgraph=True, backend="aot_eager")
    targets = Targets(labels[index], observed[index], index)
    scores = torch.zeros(2, K, requires_grad=True)
    run(Outputs(scores), targets).backward()
    for name, value in objective.named_buffers():  # a CUDA graph may not change what it reads
        assert torch.equal(value, before[name])
    objective.step(0.01)
    assert objective.table.clock == 1
    assert objective.table.seen.nonzero().flatten().tolist() == [3, 9]


@pytest.mark.parametrize(("one", "other"), [("memory", "device"), ("device", "memory")])
def test_a_run_goes_on_with_the_other_table(one, other):
    first, second = ROLE(N, K, 1.5, table=one), ROLE(N, K, 1.5, table=other)
    weight, optimizer = train(first, 2 * WINDOW)
    second.load_state_dict(first.state_dict())
    rows = torch.arange(N)
    torch.testing.assert_close(second.estimates(rows), first.estimates(rows), atol=1e-5, rtol=0)
    train(second, STEPS, start=2 * WINDOW, weight=weight, optimizer=optimizer)
    unbroken, expected = straight(one)
    torch.testing.assert_close(weight.detach(), expected, atol=1e-5, rtol=0)
    off = (second.estimates(rows) - unbroken.estimates(rows)).abs()
    assert off.quantile(0.99) <= 1e-5


def test_estimates_of_another_size_are_refused():
    with pytest.raises(RuntimeError, match="the estimates of 4 images by 2 labels do not fit"):
        ROLE(4, 2, 1.0, table="device").load_state_dict(ROLE(5, 2, 1.0).state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        ROLE(4, 2, 1.0, table="device").load_state_dict({})


@pytest.mark.parametrize("table", ["dense", "memory", "device", "file"])
def test_a_second_stage_starts_from_given_estimates(tmp_path, table):
    objective = ROLE(4, 2, 1.0, table=tmp_path / "estimates" if table == "file" else table)
    objective.set_estimates(torch.tensor([3, 1]), torch.tensor([[0.2, 1.0], [0.7, 0.5]]))
    found = objective.estimates(torch.tensor([1, 3]))
    torch.testing.assert_close(found, torch.tensor([[0.7, 0.5], [0.2, 1 - 1e-5]]))
    labels = torch.tensor([[1.0, 0.0]])
    objective(Outputs(torch.zeros(1, 2)), Targets(labels, None, torch.tensor([1])))
    objective.step(0.0)  # its labels do not overwrite what was given
    torch.testing.assert_close(objective.estimates(torch.tensor([1]))[0, 0], torch.tensor(0.7))


@pytest.mark.parametrize("earlier", ["dense", "memory", "device"])
@pytest.mark.parametrize("later", ["dense", "memory", "device"])
def test_a_second_stage_takes_over_what_the_first_one_met(earlier, later):
    first, second = ROLE(N, K, 1.5, table=earlier), ROLE(N, K, 1.5, table=later, seed=7)
    train(first, 30)
    before = second.estimates(torch.arange(N))
    assert second.start_from(first.state_dict())
    met = torch.cat(batches(30)).unique()
    expected = before.index_copy(0, met, first.estimates(met))
    found = second.estimates(torch.arange(N))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert not second.start_from({"link.scale": torch.ones(())})


def test_the_table_stays_off_the_device_and_out_of_the_optimiser():
    objective = ROLE(10, 3, 1.5).to("meta", torch.float64)
    assert objective.table.records.device.type == "cpu"
    assert objective.table.records.dtype == torch.float32
    assert not list(objective.parameters())


def test_only_training_with_gradients_is_followed_by_a_step():
    objective = ROLE(4, 3, 1.5)
    batch = Outputs(torch.zeros(2, 3)), Targets(torch.eye(3)[:2], None, torch.tensor([0, 1]))
    with torch.no_grad():
        objective(*batch)
    objective.eval()(*batch)
    objective.step(0.1)
    assert objective.table.clock == 0


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: ROLE(0, 3, 1.0), "must be positive, got 0, 3 and 1.0"),
        (lambda: ROLE(2, 3, 0.0), "must be positive, got 2, 3 and 0.0"),
        (lambda: ROLE(2, 3, 1.0, start=1.0), r"start must lie in \[0.5, 1\), got 1.0"),
        (lambda: ROLE(2, 3, 1.0)(torch.zeros(2, 3), torch.eye(3)[:2]), "got Targets without index"),
    ],
)
def test_refuses_what_it_cannot_use(make, rule):
    with pytest.raises(ValueError, match=rule):
        make()


def test_window_leaves_nothing_out():
    assert WINDOW * log(0.9 / 0.999**0.5) < log(1e-7)
