"""Operating points and subgroups on the command line, held to counts made from the table."""

import csv
import json

import numpy as np
import pytest
from typed import must_run, refused, run

from labelwise.evaluation import Evaluation


@pytest.fixture
def sites(tmp_path):
    """A table of 4 days, 2 splits and 2 sites, of which one is harder."""
    rng = np.random.default_rng(0)
    with (tmp_path / "sites.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "split", "site", "time", "score:deer", "label:deer"])
        for row in range(800):
            hard = row % 2
            there = rng.random() < 0.3
            score = (1 if hard else 4) * (there - 0.5) + rng.normal()
            moment = f"2024-05-0{row % 4 + 1}T06:{row % 60:02}:00"
            split = "val" if row < 400 else "test"
            site = "forest" if hard else "road"
            table.writerow([row, split, site, moment, score, int(there)])
    return tmp_path / "sites.csv"


APART = ("--scores", "logits", "--fit-on", "val", "--report-on", "test")


def rows_of(path, split):
    with path.open() as file:
        return [row for row in csv.DictReader(file) if row["split"] == split]


def test_an_operating_point_is_reported_by_site(sites, tmp_path):
    out = tmp_path / "rule.json"
    words = ("--rule", "specificity-0.9", "--by", "site", "-o", out)
    result = must_run("calibrate", sites, *APART, *words)
    for words in ("sensitivity", "specificity", "false alarms per 1,000", "by site", "forest"):
        assert words in result.stdout
    record = json.loads(out.read_text())
    (cut,) = record["thresholds"].values()

    def alarms(split, *sites_of):
        absent = [row for row in rows_of(sites, split) if row["label:deer"] == "0"]
        scores = [float(row["score:deer"]) for row in absent if row["site"] in sites_of]
        return np.mean(np.array(scores) >= np.log(cut / (1 - cut)))

    for site in ("forest", "road"):
        (figures,) = record["by"]["site"][site]
        assert figures["specificity"][0] == pytest.approx(1 - alarms("test", site))
    assert alarms("val", "forest", "road") <= 0.1


def test_false_alarms_per_day_are_those_of_the_days_in_the_table(sites, tmp_path):
    out = tmp_path / "rule.json"
    result = must_run("calibrate", sites, *APART, "--rule", "false-alarms-3/day", "-o", out)
    assert "at most 3 false alarms per day, at 200 photos a day" in result.stdout
    (figures,) = json.loads(out.read_text())["labels"]["on the rows it was fitted on"]
    assert 2 / 200 < figures["false_alarms"][0] <= 3 / 200


PER_DAY = ("--rule", "false-alarms-3/day")
BY_SITE = ("--rule", "best-f", "--by", "site")


@pytest.mark.parametrize(
    ("old", "new", "options", "sentence"),
    [
        ("time", "moment", PER_DAY, "there is no column 'time'"),
        ("2024-05-01T06:00:00", "yesterday", PER_DAY, "row 1: 'time' must be a time such as"),
        ("T06:00:00", "T06:00:00Z", PER_DAY, "time zone in every row or in none"),
        ("0,val,road", "0,val,", BY_SITE, "row 1 has no 'site'; give it one, or drop the row"),
        ("", "", ("--guarantee", "recall=0.5", "--by", "site"), "a guarantee is tested on all"),
    ],
)
def test_tables_and_options_that_do_not_fit_are_named(sites, old, new, options, sentence):
    sites.write_text(sites.read_text().replace(old, new, 1))
    assert sentence in refused("calibrate", sites, *APART, *options)


def test_the_report_draws_curves_and_tells_sites_apart(sites, tmp_path):
    out = tmp_path / "out"
    words = ("--scores", "logits", "--split", "test", "--by", "site", "-o", out)
    result = must_run("evaluate", sites, *words)
    assert "* differs from the other photos" in result.stdout.replace("*:", "*")
    found = Evaluation.load(out / "evaluation.json")
    assert [one.part for one in found.curves] == ["", "forest", "road"]
    figures = {(row.name, one.name): one for row in found.subgroups for one in row.figures}
    assert figures["forest", "wrong labels"].differs
    assert "wrong labels of forest" in (out / "report.html").read_text()


def test_a_tuned_level_that_other_rows_miss_is_said_and_a_guarantee_is_offered(tmp_path):
    """Oracle: recall counted from the table; the test rows score lower by one."""
    rng = np.random.default_rng(0)
    there = rng.random(600) < 0.5
    odds = 4.0 * (there - 0.5) + rng.normal(size=600) - np.repeat([0.0, 1.0], 300)
    splits = 300 * ["val"] + 300 * ["test"]
    rows = [f"{row},{splits[row]},{odds[row]},{int(there[row])}" for row in range(600)]
    table = tmp_path / "shifted.csv"
    table.write_text("\n".join(["id,split,score:deer,label:deer", *rows]))
    out = tmp_path / "rule.json"
    result = run("calibrate", table, *APART, "--rule", "sensitivity-0.9", "-o", out)
    cut = json.loads(out.read_text())["thresholds"]["deer"]
    recall = (1 / (1 + np.exp(-odds[300:][there[300:]])) >= cut).mean()
    assert recall < 0.9
    missed = f"Sensitivity is below 90% on other rows for 1 of 1 label: deer {recall:.1%}."
    assert missed in result.stdout
    command = result.stdout.splitlines()[-1].split("labelwise ")[1]
    assert "--guarantee recall-per-label=0.9" in command
    must_run(*command.replace("guaranteed.json", str(tmp_path / "made.json")).split())
    assert "recall" in (tmp_path / "made.json").read_text()
    for rule in ("specificity-0.5", "best-f"):
        assert "is below" not in run("calibrate", table, *APART, "--rule", rule).stdout
