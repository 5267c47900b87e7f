"""Properties every objective must have, whatever its formula."""

import itertools
from collections.abc import Callable
from math import cos, pi

import torch
from torch import Tensor

from labelwise.learn.objectives import Objective
from labelwise.types import DatasetFacts, Outputs, Targets

Make = Callable[[DatasetFacts], Objective]

EXTREMES = (-1e4, -50.0, 0.0, 50.0, 1e4)


def facts(rows: int, labels: int) -> DatasetFacts:
    return DatasetFacts(rows, labels, mean_labels=1.5, priors=(0.3,) * labels)


def value(objective, logits, labels, observed=None) -> Tensor:
    """Return the loss; extra head outputs are stood in for by a function of the logits."""
    aux = {name: 0.5 * logits for name in objective.aux}
    return objective(Outputs(logits, aux), Targets(labels, observed, torch.arange(len(logits))))


def value_and_grad(objective, logits, labels, observed=None) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    loss = value(objective, logits, labels, observed)
    (grad,) = torch.autograd.grad(loss, logits)
    return loss.detach(), grad


def example(rows: int = 6, labels: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random float64 logits and 0/1 labels, one row with none and one with all present."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, labels, generator=generator, dtype=torch.float64)
    truth = (torch.rand(rows, labels, generator=generator) < 0.4).double()
    truth[0], truth[1] = 0, 1
    truth[2, 0], truth[2, 1] = 1, 0
    return logits, truth


# Two images; every label set of an image occurs as often as independent labels of these
# probabilities say, so the loss of the rows is the exact expected loss.
CHANCES = torch.tensor([[1 / 8, 1 / 2, 7 / 8], [3 / 4, 1 / 4, 1 / 8]], dtype=torch.float64)


def expectation() -> tuple[Tensor, Tensor]:
    """Return which image (R,) and which labels (R, 3) make up the exact expectation."""
    images, rows = [], []
    for image, chances in enumerate(CHANCES):
        for labels in itertools.product((0.0, 1.0), repeat=3):
            given = torch.tensor(labels, dtype=torch.float64)
            copies = round(128 * torch.where(given == 1, chances, 1 - chances).prod().item())
            images += [image] * copies
            rows += [given] * copies
    return torch.tensor(images), torch.stack(rows)


def recovery_error(objective: Objective) -> float:
    """Fit free logits to the exact expected loss; return the largest error of p.

    Plain gradient steps, because a loss with detached weights has no value to search along.
    """
    images, labels = expectation()
    logits = torch.zeros_like(CHANCES, requires_grad=True)
    optimizer = torch.optim.Adam([logits], betas=(0.8, 0.99))
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 0.15 * (1 + cos(pi * step / 150)) + 1e-5
        optimizer.zero_grad()
        value(objective, logits[images], labels).backward()
        optimizer.step()
    if any(True for _ in objective.buffers()):
        for _ in range(100):  # a moving average must arrive, too
            value(objective, logits[images].detach(), labels)
    return (objective.probabilities(logits.detach()) - CHANCES).abs().max().item()


def assert_recovers_probabilities(objective: Objective) -> None:
    assert recovery_error(objective) < 1e-3


def assert_repeating_a_batch_changes_nothing(make: Make) -> None:
    """The scale of the loss, and so the learning rate, must not depend on the batch size."""
    objective, (logits, labels) = make(facts(12, 5)), example()
    once = value(objective, logits, labels)
    torch.testing.assert_close(value(objective, logits.repeat(2, 1), labels.repeat(2, 1)), once)


def assert_finite_anywhere(make: Make) -> None:
    """Extreme logits; rows with no, all and nothing observed; a batch of one row."""
    generator = torch.Generator().manual_seed(0)
    table = torch.tensor(list(itertools.product(EXTREMES, repeat=3)))  # (125, 3) float32
    labels = torch.randint(2, table.shape, generator=generator).float()
    labels[:5], labels[5:10] = 0, 1
    observed = torch.rand(table.shape, generator=generator) < 0.7
    observed[10] = False
    everything = slice(0, len(table))
    single = [slice(row, row + 1) for row in (0, 10, 124)]
    nothing = torch.zeros_like(observed)
    for rows, mask in itertools.product([everything, *single], [None, observed, nothing]):
        objective = make(facts(len(table), 3))
        for truth in (labels[rows], torch.zeros_like(labels[rows]), torch.ones_like(labels[rows])):
            seen = None if mask is None else mask[rows]
            loss, grad = value_and_grad(objective, table[rows], truth, seen)
            assert loss.isfinite(), (rows, truth, seen)
            assert grad.isfinite().all(), (rows, truth, seen)
            if seen is not None and not objective.reads_unknown:
                assert (grad[~seen] == 0).all(), "an unobserved entry has a gradient"


def assert_equivariant(make: Make) -> None:
    """Order of labels and of rows means nothing."""
    logits, labels = example()
    loss, grad = value_and_grad(make(facts(6, 5)), logits, labels)
    for order in (torch.randperm(5), torch.tensor([4, 3, 2, 1, 0])):
        permuted = value_and_grad(make(facts(6, 5)), logits[:, order], labels[:, order])
        torch.testing.assert_close(permuted, (loss, grad[:, order]))
    order = torch.tensor([3, 5, 1, 0, 2, 4])
    permuted = value_and_grad(make(facts(6, 5)), logits[order], labels[order])
    torch.testing.assert_close(permuted, (loss, grad[order]))


def assert_gradient_is_right(make: Make) -> None:
    logits, labels = example()
    objective = make(facts(6, 5)).eval()
    assert torch.autograd.gradcheck(
        lambda scores: value(objective, scores, labels), logits.requires_grad_()
    )


def assert_compiles(make: Make, backend: str) -> None:
    """One graph, and the numbers of the eager form."""
    logits, labels = (values.float() for values in example())
    observed = torch.rand(logits.shape, generator=torch.Generator().manual_seed(1)) < 0.8
    targets = Targets(labels, observed, torch.arange(6))
    torch._dynamo.reset()
    found = []
    for compiled in (False, True):
        objective = make(facts(6, 5))
        scores = logits.clone().requires_grad_()
        outputs = Outputs(scores, {name: 0.5 * logits for name in objective.aux})
        run = torch.compile(objective, fullgraph=True, backend=backend) if compiled else objective
        loss = run(outputs, targets)
        loss.backward()
        found.append((loss.detach(), scores.grad))
    torch.testing.assert_close(found[1], found[0])


def assert_safe_under_autocast(make: Make) -> None:
    """Half-precision logits are summed in full precision."""
    logits, labels = example(rows=64)
    scores = (8 * logits).bfloat16()
    expected = value(make(facts(64, 5)), scores.float(), labels.float())
    with torch.autocast("cpu", torch.bfloat16):
        loss = value(make(facts(64, 5)), scores, labels.bfloat16())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)


def assert_masks_are_slices(make: Make) -> None:
    """An unobserved label or row is as if it were not there, whatever stands in its place."""
    logits, labels = example()
    rows, columns = torch.tensor([0, 1, 2, 4, 5]), torch.tensor([0, 1, 3, 4])
    observed = torch.zeros(6, 5, dtype=torch.bool)
    observed[rows[:, None], columns] = True
    some = logits[rows][:, columns], labels[rows][:, columns]
    loss, grad = value_and_grad(make(facts(5, 4)), *some)
    expected = torch.zeros_like(logits)
    expected[rows[:, None], columns] = grad
    for filler in (0.0, 1.0, -1.0, float("nan")):
        masked = torch.where(observed, labels, filler)
        found = value_and_grad(make(facts(6, 5)), logits, masked, observed)
        torch.testing.assert_close(found, (loss, expected))


def assert_soft_labels_are_mixtures(make: Make) -> None:
    """Copies of a row whose labels differ cost what copies with the mean of their labels cost."""
    logits = example()[0].repeat_interleave(4, dim=0)
    chosen = torch.randint(5, (24,), generator=torch.Generator().manual_seed(0))
    votes = torch.nn.functional.one_hot(chosen, 5).to(logits)
    shares = votes.view(6, 4, 5).mean(1).repeat_interleave(4, dim=0)
    objective = make(facts(24, 5))
    torch.testing.assert_close(value(objective, logits, shares), value(objective, logits, votes))


def assert_state_round_trip(make: Make) -> None:
    """A resumed objective goes on as the interrupted one; the global generator plays no part."""
    first, again, resumed = (make(facts(6, 5)) for _ in range(3))
    for seed in range(6):
        others = [again, resumed] if seed >= 3 else [again]
        if seed == 3:
            resumed.load_state_dict(first.state_dict())
        torch.manual_seed(seed + 7)
        expected = value(first, *example(seed=seed))
        for other in others:
            torch.manual_seed(seed + 8)
            torch.testing.assert_close(value(other, *example(seed=seed)), expected, rtol=0, atol=0)
    if first.link is not None:
        scores = example()[0]
        torch.testing.assert_close(resumed.link(scores), first.link(scores), rtol=0, atol=0)
