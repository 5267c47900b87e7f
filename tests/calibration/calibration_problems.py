"""Problems with known answers, and the log loss they are judged by."""

import numpy as np
import torch


def problem(images=400, labels=5, *, seed=0, slope=2.0, shift=1.0, spread=0.5, unknown=False):
    """Return logits, labels, observed; the label's log-odds are (logit - shift_k) / slope."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(size=(images, labels)) * 1.5 - 1
    truth = rng.random((images, labels)) < 1 / (1 + np.exp(-odds))
    truth[:2] = [[True], [False]]
    logits = slope * odds + shift + spread * rng.normal(size=labels)
    observed = rng.random((images, labels)) < 0.7 if unknown else None
    if observed is not None:
        observed[:2] = True
    mask = None if observed is None else torch.from_numpy(observed)
    return torch.from_numpy(logits), torch.from_numpy(truth), mask


def log_loss(link, logits, labels, observed=None):
    """Mean log loss of the observed entries."""
    log_p, log_q = link.log_probs(logits)
    loss = -torch.where(labels.bool(), log_p, log_q)
    return (loss if observed is None else loss[observed]).mean().item()
