"""Experiments for what two papers say in words alone: quasibinary's α and q > 1, two-way's margin.

``000-alpha``    the moving average C <- (1 - α) C + α C_batch with five α: error, the share of
                 test entries with q = exp(v) / C > 1, and the variance of C over the last quarter
                 of training
``002-margin``   A.1 of the supplement: a temperature T of present labels against a margin ε
"""

import numpy as np

from labelwise.models.run_folder import RunFolder
from labelwise.objectives import QuasibinaryLink
from labelwise.papers import columns
from labelwise.papers.measures import FinishedRun
from labelwise.papers.protocols import (
    CIFAR,
    FROZEN,
    GOOD_CIFAR,
    Experiment,
    Row,
    Values,
)
from labelwise.papers.table_claims import FigureOf, TableClaim

ALPHAS = (0.01, 0.05, 0.1, 0.2, 0.5)
TEMPERATURES, MARGINS = (1.0, 2.0, 4.0, 8.0), (0.5, 1.0, 2.0, 4.0)
SETTLED = 0.25  # the last part of training, over which the variance of C is taken


def normaliser_figures(run: FinishedRun) -> dict[str, float]:
    """Return the error, the share of test entries with q > 1 (per cent), C, and its variance."""
    link = run.test.link
    if not isinstance(link, QuasibinaryLink):
        raise TypeError(f"these figures are of the quasibinary link, got {type(link).__name__}")
    above = run.test.logits.astype(np.float64) > float(link.log_normalizer)
    figures = {
        **columns.top_error(run),
        "q > 1": 100 * float(above.mean()),
        "C": float(np.exp(float(link.log_normalizer))),
    }
    journal = RunFolder(run.folder).journal.read()
    kept = [one["link.log_normalizer"] for one in journal if "link.log_normalizer" in one]
    last = np.exp(np.asarray(kept[int(len(kept) * (1 - SETTLED)) :], dtype=np.float64))
    if len(last) > 1:
        figures["variance of C"] = float(last.var())
    return figures


def alpha_experiment(unstated: frozenset[str], stated: Values, remark: str) -> Experiment:
    """Return the runs of five α on CIFAR-100 with ResNet-18, the recipe of Table I."""
    rows = {
        f"alpha={alpha:g}": Row(
            {
                "method": "quasibinary",
                "options": {"test_normalizer": "moving", "momentum": round(1 - alpha, 6)},
            }
        )
        for alpha in ALPHAS
    }
    violations = FigureOf("q > 1", ("alpha=0.1",))
    variances = FigureOf("variance of C", tuple(rows), "range")
    return Experiment(
        "000-alpha",
        "cifar100",
        rows,
        {**CIFAR, "backbone": "resnet18-32", "recipe.epochs": 200},
        GOOD_CIFAR,
        normaliser_figures,
        validation=False,
        stated={**stated, "held_out": 0.0, "image_size": 32},
        unstated=unstated,
        deviations=(
            remark,
            "Which α were tried, and over which steps the variance of C is taken, is not in the "
            "text; here it is the last quarter of training.",
        ),
        claims=(
            TableClaim(
                "About 0.1 % of q on test data are above 1 (at most twice that)",
                "violations <= 0.2",
                {"violations": violations},
            ),
            TableClaim(
                "The variance of C differs by at most 0.01 whatever α is",
                "difference <= 0.01",
                {"difference": variances},
            ),
        ),
    )


def margin_experiment(recipe: Values, unstated: frozenset[str], stated: Values) -> Experiment:
    """Return the runs of four temperatures and four margins on MS-COCO, the recipe of Table B."""
    temperatures = {
        f"T={value:g}": Row({"method": "two-way", "options": {"temperature_pos": value}})
        for value in TEMPERATURES
    }
    margins = {
        f"margin={value:g}": Row(
            {"method": "two-way", "options": {"temperature_pos": 1.0, "margin": value}}
        )
        for value in MARGINS
    }
    named = {"temperature": temperatures, "margin": margins}
    return Experiment(
        "002-margin",
        "coco",
        {**temperatures, **margins},
        recipe,
        FROZEN,
        columns.ranked,
        stated=stated,
        unstated=unstated,
        deviations=("Which margins were tried is not in the text (Table 2 of the paper).",),
        claims=(
            TableClaim(
                "A.1: the best temperature ranks above the best margin (mAP@class)",
                "temperature > margin",
                {name: FigureOf("mAP@class", tuple(rows)) for name, rows in named.items()},
            ),
        ),
    )
