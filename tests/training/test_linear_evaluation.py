"""Linear evaluation against scikit-learn's logistic regression."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from labelwise.data import LabelTable
from labelwise.errors import DataError
from labelwise.metrics import average_precision
from labelwise.papers.transfer import (
    L2_WEIGHTS,
    linear_evaluation,
    linear_path,
)
from labelwise.pictures import ArrayImages, FeatureRows

RNG = np.random.default_rng(0)
TRUTH = RNG.normal(size=(6, 4))


def draw(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, 6)) * [1, 2, 0.5, 1, 3, 1]
    labels = rng.random((rows, 4)) < 1 / (1 + np.exp(-(features @ TRUTH - 0.5)))
    return torch.tensor(features), torch.tensor(labels)


def table(rows: int, seed: int) -> LabelTable:
    features, labels = draw(rows, seed)
    rows_of = FeatureRows(features.numpy().astype(np.float32))
    return LabelTable.from_arrays(list("abcd"), rows_of, labels.numpy())


@pytest.mark.parametrize("masked", [False, True])
def test_sigmoid_fits_are_scikit_learns(masked):
    features, labels = draw(150, 1)
    observed = torch.rand(150, 4, generator=torch.Generator().manual_seed(0)) < 0.8
    weights = (0.01, 1.0, 30.0)
    known = observed if masked else None
    for fit in linear_path(features, labels, known, l2_weights=weights):
        for label in range(4):
            rows = observed[:, label] if masked else torch.ones(150, dtype=torch.bool)
            peer = LogisticRegression(C=1 / fit.l2, tol=1e-10, max_iter=5000)
            peer.fit(features[rows], labels[rows, label])
            np.testing.assert_allclose(fit.weight[:, label], peer.coef_[0], atol=2e-4)
            np.testing.assert_allclose(fit.bias[label], peer.intercept_[0], atol=2e-4)


def test_softmax_fits_are_scikit_learns():
    features, _ = draw(150, 2)
    classes = (features @ torch.tensor(TRUTH)).argmax(1)
    labels = torch.nn.functional.one_hot(classes, 4)
    empty = torch.cat([labels, torch.zeros(5, 4, dtype=labels.dtype)])
    with_empty = torch.cat([features, 9 * torch.ones(5, 6, dtype=features.dtype)])
    path = linear_path(with_empty, empty, softmax=True, l2_weights=(0.1, 10.0))
    for fit in path:
        peer = LogisticRegression(C=1 / fit.l2, tol=1e-10, max_iter=5000).fit(features, classes)
        ours = fit.logits(features).softmax(1)
        np.testing.assert_allclose(ours, peer.predict_proba(features), atol=1e-4)


def test_the_path_is_the_papers_forty_five_weights_and_warm_starts_change_nothing():
    assert len(L2_WEIGHTS) == 45
    assert L2_WEIGHTS[0] == pytest.approx(1e-6)
    assert L2_WEIGHTS[-1] == pytest.approx(1e5)
    features, labels = draw(120, 3)
    path = linear_path(features, labels, l2_weights=(100.0, 1.0, 0.1))
    alone = linear_path(features, labels, l2_weights=(0.1,))
    torch.testing.assert_close(path[-1].weight, alone[0].weight, atol=1e-4, rtol=0)
    assert [fit.l2 for fit in path] == [100.0, 1.0, 0.1]


def test_the_weight_is_chosen_on_validation_and_judged_on_test():
    train, val, test = table(60, 4), table(200, 5), table(300, 6)
    result = linear_evaluation(train, val, test, l2_weights=(1e-3, 1.0, 1e3))
    assert result.validation[result.best.l2] == max(result.validation.values())
    features = torch.from_numpy(test.images.features)
    expected = average_precision(result.best.logits(features), test.targets()[0]).value
    assert result.test == pytest.approx(expected)
    assert result.test > 0.7
    logits = result.best.head()(features[:, :, None, None]).logits
    torch.testing.assert_close(logits.double(), result.best.logits(features), atol=1e-4, rtol=1e-4)


def test_softmax_evaluation_counts_the_likeliest_label():
    result = linear_evaluation(
        table(80, 7), table(80, 8), table(80, 9), softmax=True, l2_weights=(1.0,)
    )
    test = table(80, 9)
    chosen = result.best.logits(torch.from_numpy(test.images.features)).argmax(1)
    labels = torch.from_numpy(test.targets()[0])
    hits = [bool(row[best]) for row, best in zip(labels, chosen, strict=True) if row.any()]
    assert result.test == pytest.approx(np.mean(hits))
    assert result.metric == "top-1 accuracy"


def test_images_are_refused():
    pictures = LabelTable.from_arrays(
        ["a"], ArrayImages(np.zeros((2, 4, 4, 3), np.uint8)), [[0], [1]], name="pictures"
    )
    with pytest.raises(DataError, match="pictures must hold pooled features"):
        linear_evaluation(pictures, pictures, pictures)
