"""The dossier of a run, held to the run's own files and to their hashes."""

import csv
import json
import re
import shutil
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from browser_setup import assert_fits, assert_no_finding
from made_index import made_index
from open_indexes import open_index
from sample_scores import NAMES, sample, spec_of
from search_setup import save_model
from typed import must_run, refused

from labelwise.decide import Promise, Threshold
from labelwise.links import Sigmoid
from labelwise.photos.lists import keep_receipt
from labelwise.pictures.transform import Bands, Transform
from labelwise.report.dossier import ANNEX_IV
from labelwise.report.runs import NOT_IN_TABLE, subgroups_of


def dossier_of(*words, out):
    """Return what is in the dossier that a command writes."""
    must_run("report", "--format", "dossier", *words, "-o", out)
    return json.loads((out / "dossier.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 300 test photos of 30 patients, one sex of which is scored upside down."""
    place = tmp_path_factory.mktemp("run")
    own = sample(300)
    sex = np.where(np.arange(300) // 10 % 3 == 0, "f", "m")
    logits = own.logits.copy()
    logits[sex == "f"] *= -1
    group = [f"patient-{row // 10}" for row in range(300)]
    replace(own, logits=logits, group=group).save(place / "predictions" / "test.parquet")
    sample(100, seed=1).save(place / "predictions" / "val.parquet")
    bands = Bands(("B04", "B08"), ("B04",), "40,400")
    deep = replace(Transform(32), bands=bands, mean=(0.0,) * 2, std=(1.0,) * 2)
    spec = spec_of(NAMES, Sigmoid(), Threshold(0.4)).model_copy(update={"transform": deep})
    spec.save(place / "model.json")
    with (place / "facts.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "sex", "camera"])
        table.writerows([[name, s, "a"] for name, s in zip(own.ids, sex, strict=True)])
    return place


@pytest.fixture(scope="module")
def written(folder):
    out = folder / "dossier"
    by = ("--by", "sex", "--table", folder / "facts.csv")
    record = dossier_of(folder, *by, "--intended-use", "To sort <b>photos</b>.", out=out)
    return (out / "dossier.html").read_text(), record


def test_headings_are_those_of_annex_iv_in_order(written):
    page, record = written
    assert "32 pixels, bands at full depth: B04, B08, window 40,400" in page
    found = re.findall(r"<h2 id=\"[a-z]+\">([^<]+)</h2>", page)
    assert [heading for heading in found if heading[0].isdigit()] == list(ANNEX_IV.values())
    assert [key for key in record if key[0].isdigit()] == list(ANNEX_IV.values())


def test_hashes_and_splits_are_those_of_the_files(folder, written):
    _, record = written
    made = record[ANNEX_IV["development"]]
    for name in ("model.json", "predictions/test.parquet", "predictions/val.parquet"):
        assert made["hashes"][name] == sha256((folder / name).read_bytes()).hexdigest()
    rows = {row["split"]: row for row in made["splits"]}
    assert (rows["test"]["photos"], rows["test"]["groups"]) == ("300", "30")
    assert (rows["val"]["photos"], rows["val"]["groups"]) == ("100", "none named")
    assert made["versions"]["labelwise"]


def test_the_subgroup_that_is_treated_worse_is_told_apart(written):
    page, record = written
    rows = {row["name"]: row for row in record[ANNEX_IV["metrics"]]["subgroups"]}
    assert (rows["f"]["photos"], rows["f"]["groups"]) == (100, 10)
    wrong = {one["name"]: one for one in rows["f"]["figures"]}["wrong labels"]
    assert wrong["p_value"] < 0.05
    assert "wrong labels of f" in page
    assert "ROC curve of dog" in page


def test_it_makes_no_claim_and_runs_nothing(written):
    page, record = written
    assert "no legal statement" in record["disclaimer"]
    assert record[ANNEX_IV["declaration"]].startswith("None.")
    for word in ("compliant", "complies", "conforms", "certified"):
        assert word not in page.lower()
    assert "To sort &lt;b&gt;photos&lt;/b&gt;." in page
    assert "<b>tree & co</b>" not in page
    assert "http-equiv" in page
    assert not re.search(r"(?:src|href)=\"https?:", page)


def test_its_links_lead_somewhere_and_it_can_be_read_aloud(folder, written, opened):
    text, _ = written
    assert {*re.findall('href="#([^"]+)"', text)} <= {*re.findall(' id="([^"]+)"', text)}
    page, heard = opened(folder / "dossier" / "dossier.html")
    assert_fits(page)
    page.set_viewport_size({"width": 1280, "height": 800})
    cut = "[...document.querySelectorAll('table')].filter(t => t.checkVisibility() && "
    cut += "t.scrollWidth > t.parentElement.clientWidth + 1).map(t => t.innerText.slice(0, 80))"
    assert page.evaluate(cut) == []  # who prints the page loses no column
    assert_no_finding(page, 1280, "light")
    assert heard == []


def test_what_nobody_said_is_said_to_be_missing(folder, tmp_path):
    record = dossier_of(folder, "--split", "val", out=tmp_path)
    assert record[ANNEX_IV["general"]]["intended use"].startswith("Not stated")
    limits = " ".join(record[ANNEX_IV["risks"]])
    assert "No groups are named" in limits
    assert "Not examined for differences between subgroups" in limits


def test_figures_of_photos_that_the_model_was_fitted_on_are_said_to_be_too_good(
    folder, written, tmp_path
):
    sentence = "which took part in fitting the model or its rule, and so are too good."
    assert sentence not in " ".join(written[1][ANNEX_IV["risks"]])
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "predictions" / "test.parquet").unlink()
    said = refused("report", "--format", "dossier", tmp_path / "run", "-o", tmp_path / "out")
    assert said.endswith("has no test split; choose another of its splits (val) with --split")
    record = dossier_of(tmp_path / "run", "--split", "val", out=tmp_path / "out")
    assert record[ANNEX_IV["risks"]][0] == f"All figures are of val, {sentence}"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--by", "sex"), "--by names columns of a --table"),
        (("--by", "age", "--table", "facts.csv"), "there is no column 'age'"),
        (("--by", "sex", "--table", "other.csv"), "names no photo of the split"),
        (("--split", "train"), "train"),
    ],
)
def test_bad_input_is_one_sentence(folder, tmp_path, options, sentence):
    (folder / "other.csv").write_text("id,sex\nnobody,f\n")
    words = [folder / word if word.endswith(".csv") else word for word in options]
    assert sentence in refused(
        "report", "--format", "dossier", folder, "-o", tmp_path / "x", *words
    )


@pytest.mark.parametrize(
    ("header", "in_run", "in_table"),
    [
        ("Path,Sex", "valid/patient{}/view1.jpg", "CheXpert-v1.0/valid/patient{}/view1.jpg"),
        ("Image Index,Sex", "images_001/images/{:08}_000.png", "{:08}_000.png"),
    ],
)  # fmt: skip
def test_facts_are_those_of_the_published_table(tmp_path, header, in_run, in_table):
    ids = [in_run.format(row) for row in range(4)]
    (tmp_path / "facts.csv").write_text(
        f"{header}\n{in_table.format(2)},F\n{in_table.format(0)},M\n{in_table.format(9)},F\n"
    )
    found = subgroups_of("Sex", tmp_path / "facts.csv", replace(sample(4), ids=ids))
    assert found.values.tolist() == ["M", NOT_IN_TABLE, "F", NOT_IN_TABLE]


def test_receipts_of_promised_lists_are_shown(folder, tmp_path):
    logits = np.random.default_rng(1).normal(-1, 2, (600, 4))
    index = made_index(tmp_path / "photos.index", save_model(tmp_path / "run"), logits)
    said = ("list", 0.5, None, 400, 50, 0.95, "held-out photos", "2026-01-01", "conformal")
    promise = Promise(*said, kind="expected", listed=120)
    keep_receipt(open_index(index), "dog", promise, np.arange(120))
    record = dossier_of(folder, "--index", index, out=tmp_path / "out")
    first, together = record[ANNEX_IV["monitoring"]]["receipts"]
    assert re.match("Receipt 1, dog: .*at most 50", first)
    assert "cannot be decided" in together
