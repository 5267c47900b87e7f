"""Units from photos. Oracles: all outcomes enumerated, Bayes' rule, and worlds of known truth."""

import csv
import itertools

import numpy as np
import pytest
from scipy.special import expit, logit
from typed import must_run, run

from labelwise.scores.aggregating import aggregate, aggregate_labels


def one_unit(p, how, shares):
    return aggregate(np.log(p), np.log1p(-p), np.zeros(len(p), np.int64), 1, how, shares)[0]


@pytest.mark.parametrize("how", ["any", "most"])
@pytest.mark.parametrize("photos", [1, 2, 5, 6])
def test_the_chance_of_a_unit_is_that_of_all_outcomes(how, photos):
    p = np.random.default_rng(photos).random((photos, 3))
    found = one_unit(p, how, np.full(3, 0.5))
    expected = np.zeros(3)
    for outcome in itertools.product((0, 1), repeat=photos):
        chances = np.where(np.array(outcome)[:, None], p, 1 - p).prod(0)
        expected += chances * (sum(outcome) > (photos / 2 if how == "most" else 0))
    assert expit(found) == pytest.approx(expected)


def test_evidence_adds_up_as_bayes_says():
    rng = np.random.default_rng(0)
    share, likes = 0.2, rng.random((4, 2))  # P(what photo i shows | present), P(... | absent)
    p = share * likes[:, 0] / (share * likes[:, 0] + (1 - share) * likes[:, 1])
    yes, no = share * likes[:, 0].prod(), (1 - share) * likes[:, 1].prod()
    found = one_unit(p[:, None], "evidence", np.array([share]))
    assert expit(found[0]) == pytest.approx(yes / (yes + no))


def test_many_photos_have_nearly_the_exact_law():
    p = np.random.default_rng(0).random((401, 1)) * 0.2 + 0.41
    large = expit(one_unit(p, "most", np.array([0.5]))[0])
    law = np.array([1.0])
    for q in p[:, 0]:
        law = np.convolve(law, [1 - q, q])
    assert large == pytest.approx(law[201:].sum(), abs=1e-3)


def test_certain_photos_stay_finite():
    p = np.array([[1.0], [0.0], [1e-300]])
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p), np.log1p(-p)
    for how in ("any", "most", "evidence"):
        found = aggregate(log_p, log_q, np.arange(3), 3, how, np.array([0.5]))
        assert np.isfinite(found).all()
        assert found[0, 0] > 100 > -100 > found[1, 0]


def test_the_truth_of_a_unit_knows_what_is_unknown():
    nan = np.nan
    labels = np.array([[1, 0, 0, 1], [0, 0, nan, 1], [nan, 0, 0, nan]])
    unit = np.zeros(3, np.int64)
    np.testing.assert_array_equal(aggregate_labels(labels, unit, 1, "any")[0], [1, 0, nan, 1])
    np.testing.assert_array_equal(aggregate_labels(labels, unit, 1, "most")[0], [nan, 0, 0, 1])


@pytest.fixture
def shots(tmp_path):
    rng = np.random.default_rng(1)
    with (tmp_path / "shots.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "split", "site", "burst", "time", "score:fox", "label:fox"])
        for row in range(600):
            burst = row // 3
            told = int(rng.random() < 0.3)
            where = ("val" if burst % 2 else "test"), f"s{burst % 5}", burst
            moment = f"2024-0{burst % 4 + 1}-01T06:00:00"
            table.writerow([row, *where, moment, 2 * told - 1 + rng.normal(), told])
    return tmp_path / "shots.csv"


def test_bursts_become_a_table_that_every_verb_for_scores_reads(shots, tmp_path):
    out = tmp_path / "bursts.csv"
    by = ("--by", "burst", "--by", "site")
    result = must_run("data", "convert", shots, "--scores", "logits", *by, "-o", out)
    assert "600 photos in 200 units by burst, site, with their labels" in result.stdout
    with out.open() as file:
        rows = {row["burst"]: row for row in csv.DictReader(file)}
    with shots.open() as file:
        photos = [row for row in csv.DictReader(file) if row["burst"] == "7"]
    p = expit(np.array([float(row["score:fox"]) for row in photos]))
    assert float(rows["7"]["score:fox"]) == pytest.approx(logit(1 - np.prod(1 - p)), abs=1e-4)
    assert float(rows["7"]["label:fox"]) == max(int(row["label:fox"]) for row in photos)
    assert (rows["7"]["site"], rows["7"]["split"], rows["7"]["photos"]) == ("s2", "val", "3")
    apart = ("--fit-on", "val", "--report-on", "test")
    must_run(
        "calibrate",
        "--calibrator",
        "none",
        out,
        "--scores",
        "logits",
        *apart,
        "--rule",
        "best-f",
        "--by",
        "site",
    )
    must_run("count", out, "--scores", "logits", "--by", "site")
    by = ("--by", "site", "--by", "month", "--by", "split", "-o", tmp_path / "months.parquet")
    result = must_run("data", "convert", shots, "--scores", "logits", *by)
    assert "20 units by site, month, split" in result.stdout


@pytest.mark.parametrize(
    ("by", "sentence"),
    [
        ("site", "'s0' is in the splits 'test' and 'val'; divide the photos by unit"),
        ("group", "there is no column 'group'"),
    ],
)
def test_units_that_cannot_be_meant(shots, tmp_path, by, sentence):
    result = run(
        "data", "convert", shots, "--scores", "logits", "--by", by, "-o", tmp_path / "x.csv"
    )
    assert sentence in str(result.exception)
    assert not (tmp_path / "x.csv").exists()
