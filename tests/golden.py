"""Golden vectors: ``cases("spa")`` gives the test cases of a method, tensors in float64."""

import json
from pathlib import Path
from typing import Any

import torch

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def cases(method: str) -> dict[str, dict[str, Any]]:
    """Return the test cases of a method by name."""
    return {case["name"]: case for case in GOLDEN[method]}


def tensor(values: Any) -> torch.Tensor:
    """Return numbers of a case as a tensor."""
    return torch.tensor(values, dtype=torch.float64)


def batch(case: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits (a leaf that wants a gradient), labels, observed; -1 is "not observed"."""
    inputs = case["inputs"]
    key = next(name for name in ("logits", "scores", "logodds") if name in inputs)
    labels = tensor(inputs["targets"])
    return tensor(inputs[key]).requires_grad_(), labels.clamp(min=0), labels >= 0


def assert_golden(actual: Any, expected: Any) -> None:
    """Fail unless a value is the golden one, to the rounding of float64."""
    actual = torch.as_tensor(actual).detach().double()
    torch.testing.assert_close(actual, tensor(expected), rtol=1e-9, atol=1e-12)
