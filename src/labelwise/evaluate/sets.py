"""The decision part: label sets against the truth, and their sizes."""

import numpy as np
from torch import Tensor

from labelwise.decide import ExpectedF, Rule, Threshold, TopK
from labelwise.evaluate.evaluation import Sets
from labelwise.evaluate.probabilities import Known, defined
from labelwise.metrics import Confusion, confusion, hamming_loss, subset_accuracy

__all__ = ["describe_rule", "label_thresholds", "sets_part"]


def describe_rule(rule: Rule) -> str:
    """Return a rule in words."""
    if isinstance(rule, TopK):
        return f"the {rule.k} most probable labels of each image"
    if isinstance(rule, Threshold):
        if isinstance(rule.value, tuple):
            return f"each label at its own threshold ({len(set(rule.value)):,} different ones)"
        return f"every label with probability at least {rule.value:.4g}"
    if isinstance(rule, ExpectedF):
        return f"the set of each image with the most expected F{rule.beta:g}"
    return rule.kind


def label_thresholds(rule: Rule | None, labels: int) -> list[float | None]:
    """Return the threshold of every label, ``None`` where the rule has none."""
    if not isinstance(rule, Threshold):
        return [None] * labels
    return list(rule.value) if isinstance(rule.value, tuple) else [rule.value] * labels


def sets_part(sets: Tensor, known: Known, by_label: Confusion, words: str) -> Sets:
    """Return the figures of sets (N, K) bool; ``by_label`` holds their counts per label."""
    present, observed = known.present, known.observed
    by_image = confusion(sets, present, observed, by="image")
    exact = subset_accuracy(sets, present, observed)
    macro = by_label.f_score()
    complete = known.rows_complete()
    sizes, true_sizes = sets.sum(1), present.sum(1)[complete]
    return Sets(
        rule=words,
        macro_f1=defined(macro.value),
        micro_f1=defined(by_label.micro().f_score().value),
        sample_f1=defined(by_image.f_score().value),
        cf1=defined(by_label.cf1()),
        hamming=defined(hamming_loss(sets, present, observed)),
        subset_accuracy=defined(exact.value),
        mean_size=float(sizes.double().mean()),
        mean_true_size=defined(true_sizes.double().mean().item()) or 0.0,
        sizes=_histogram(sizes),
        true_sizes=_histogram(true_sizes),
        how=(
            "Known entries only. Macro F1 is the mean over "
            f"{macro.num_defined:,} of {len(macro.items):,} labels; a label neither present nor "
            "chosen is left out, likewise an image. Micro F1 (OF1) pools all entries; CF1 is the "
            "harmonic mean of mean precision and mean recall over labels. Sizes count all labels "
            f"chosen; true sizes come from the {int(complete.sum()):,} images whose labels are "
            "all known."
        ),
    )


def _histogram(sizes: Tensor) -> tuple[int, ...]:
    return tuple(np.bincount(sizes.numpy(), minlength=1).tolist())
