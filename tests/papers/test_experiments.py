"""Comparisons and reproductions on small data, for real; oracles: slow forms and hand counts."""

import fcntl
import json
import os
import re
from dataclasses import replace
from mmap import mmap
from pathlib import Path

import contract
import numpy as np
import official
import pytest
import torch
from patience import wait_until
from quick_processes import QUICK
from safetensors.torch import save_file
from scipy.special import expit, softmax
from scipy.stats import t as student
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from labelwise.base.progress import Silent
from labelwise.errors import DataError, SettingsError
from labelwise.evaluation.intervals import ap_influence
from labelwise.learn.backbones import create_backbone
from labelwise.learn.methods import METHODS, make_objective
from labelwise.links import Sigmoid, Softmax
from labelwise.metrics import average_precision
from labelwise.papers import columns, measures
from labelwise.papers.compare import ComparisonPlan, compare, tries
from labelwise.papers.comparison import Comparison, SeedMean, SweepChoice, show_figure
from labelwise.papers.jobs import (
    InProcess,
    LocalProcesses,
    TrainingJob,
    default_workers,
    peak_memory,
    run_jobs,
    seconds_of,
    start_peak_memory,
)
from labelwise.papers.protocols import EXPERIMENTS
from labelwise.papers.reproduce import Request, has_data, jobs_of, open_data, reproduce
from labelwise.papers.sources import Frozen
from labelwise.pictures import ArrayImages, FeatureRows
from labelwise.predictions import Predictions
from labelwise.tables import LabelTable
from labelwise.tables.export import export
from labelwise.training.run import train
from labelwise.training.settings import read_settings

RNG = np.random.default_rng(0)


def small_table(rows=240):
    features = RNG.normal(size=(rows, 6)).astype(np.float32)
    truth = features[:, :4] + 0.5 * RNG.normal(size=(rows, 4)) > 0.8
    split = np.repeat(["train", "val", "test"], [rows // 2, rows // 4, rows // 4])
    ids = [str(row) for row in range(rows)]
    return LabelTable.from_arrays("abcd", FeatureRows(features, ids), truth, split=split)


def base(**values):
    small = {"data": "small", "backbone": "identity", "batch_size": 32, "recipe.epochs": 15}
    small |= {"recipe.optimizer.lr": 0.03, "calibrate": "none", "rule": "0.5"}
    return read_settings(None, small | values)


def predictions(rows=80, split="test"):
    logits = torch.from_numpy(RNG.normal(size=(rows, 5)) * 2 - 1).float()
    truth = (torch.rand(rows, 5) < torch.sigmoid(logits)).to(torch.uint8)
    truth[:20] = 0
    ids = [str(row) for row in range(rows)]
    return Predictions(ids, logits, truth, None, tuple("abcde"), split, Sigmoid())


def outcome(folder, *splits):
    for table in splits:
        table.save(folder / "predictions" / f"{table.split}.parquet")
    return measures.FinishedRun(folder)


class Counting(Silent):
    """Keeps what was said and what was started."""

    def __init__(self):
        self.tasks, self.messages = [], []

    def say(self, text):
        self.messages.append(text)

    def start(self, task, total, done=0):
        self.tasks.append(task)


def test_a_comparison_runs_goes_on_and_says_what_came_out(tmp_path):
    plan = ComparisonPlan(base(), ("bce", "two-way"), seeds=(0, 1))
    table, messages = small_table(), []
    watch = Counting()
    first = compare(plan, tmp_path, executor=InProcess(table), say=messages.append, watch=watch)
    assert len(messages) == plan.num_runs == 4
    assert "two-way, seed-1, epoch 15/15" in watch.tasks
    assert first.image_covariance["mAP@class"]["bce"]["two-way"] > 0
    assert set(first.image_covariance["log loss before"]) == {"bce"}
    given = [bool(first.column(f"ECE {stage}")["two-way"]) for stage in ("before", "after")]
    assert given == [False, True]
    assert first.column("host MB")["bce"][1] > 50
    weights = tmp_path / "bce" / "seed-1" / "model.safetensors"
    stamp = weights.stat().st_mtime_ns
    assert compare(plan, tmp_path, executor=InProcess(table), say=messages.append) == first
    assert weights.stat().st_mtime_ns == stamp
    assert Comparison.load(tmp_path) == first
    longer = replace(plan, base=base(**{"recipe.epochs": 16}))
    with pytest.raises(SettingsError, match=r"other settings \(recipe.epochs: 15 -> 16\)"):
        compare(longer, tmp_path, executor=InProcess(table), say=messages.append)
    assert "| bce |" in (tmp_path / "comparison.md").read_text()


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc")
def test_a_run_costs_the_memory_it_took():
    start_peak_memory()
    before = peak_memory()["host MB"]
    with mmap(-1, 64 << 20) as block:  # not from the heap, which may hold as much to reuse
        for page in range(0, len(block), 4096):
            block[page] = 1
        grown = peak_memory()["host MB"] - before
    assert 60 < grown < 80
    start_peak_memory()
    assert peak_memory()["host MB"] < before + grown - 30  # an earlier peak is forgotten


def test_tuning_keeps_the_best_try_on_validation(tmp_path):
    plan, run = ComparisonPlan(base(), ("bce", "spa"), seeds=(0,), tune=2), InProcess(small_table())
    given = []

    def executor(jobs, watch):
        given.append([f"{job.folder.parent.name} {job.folder.name}" for job in jobs])
        return run(jobs, watch)

    compare(plan, tmp_path, executor=executor, say=lambda text: None)
    for method in plan.methods:
        tried = json.loads((tmp_path / method / "tuning.json").read_text())
        best = max(tried, key=lambda one: one["score"])
        settings = {**Comparison.load(tmp_path).settings[method]}
        del settings["trained"]
        assert settings == best["settings"]
    # The tries of all methods are given at once, so that none waits for another method's.
    assert given[0] == ["bce try-0", "bce try-1", "spa try-0", "spa try-1"]


LPR = ("lpr_weight", (0, 0.1, 1))


@pytest.mark.parametrize(
    ("methods", "options", "rule"),
    [
        (("bcee",), {}, "did you mean 'bce'"),
        (("bce", "bce"), {}, "distinct"),
        (("bce",), {"seeds": ()}, "at least one seed"),
        (("bce",), {"options.kk": 2.7}, "none of the methods has the option 'kk'"),
        (("spa+lpr",), {"sweep": ("lpr_wight", (0, 1))}, "'lpr_wight'; did you mean 'lpr_weight'"),
        (("spa+lpr",), {"sweep": ("lpr_weight", (1, 1))}, "two or more distinct values"),
        (("spa+lpr",), {"sweep": LPR, "tune": 2}, "not tuned"),
        (("spa+lpr",), {"sweep": LPR, "choose": "acee"}, "metric 'acee'; did you mean 'ace'"),
        (("spa",), {"choose": "ace"}, "--choose needs a --sweep, or a --tune"),
    ],
)
def test_a_plan_names_what_is_wrong(methods, options, rule):
    rest = dict(options)
    own = {key: rest.pop(key) for key in options if "." in key}
    with pytest.raises(SettingsError, match=rule):
        ComparisonPlan(base(**own), methods, **rest)


def test_options_and_sweeps_go_to_the_methods_that_have_them():
    plan = ComparisonPlan(base(**{"options.k": 2.7, "options.weight": 0.5}), ("wan", "epr", "role"))
    given = {name: settings.options for name, settings in plan.entries.items()}
    assert given == {"wan": {}, "epr": {"k": 2.7, "weight": 0.5}, "role": {"k": 2.7}}
    plan = ComparisonPlan(base(), ("bce", "spa+lpr"), seeds=(0, 1), sweep=LPR)
    swept = [f"spa+lpr lpr_weight={value}" for value in LPR[1]]
    assert list(plan.entries) == ["bce", *swept]
    assert [plan.entries[name].options["lpr_weight"] for name in swept] == list(LPR[1])
    assert (plan.num_runs, plan.chosen_by) == (8, plan.base.recipe.metric)
    undefined = SweepChoice("two-way", "temperature_pos", "ace", None, {"1": None})
    assert "chooses no temperature_pos (1: undefined)" in str(undefined)


def test_a_sweep_is_typed_as_one_option(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    rows = "{num_train: 800, num_val: 600, num_test: 300, num_labels: 4}"
    arguments = ["compare", "posterior", "--methods", "spa+lpr", "--seeds", "1", "-o", "out"]
    arguments += ["--sweep", "lpr_weight=0,1", "--choose", "ace", "--set", f"data_options={rows}"]
    for value in ("recipe.epochs=8", "backbone=identity", "calibrate=none"):
        arguments += ["--set", value]
    code, said = call(*arguments)
    assert not code, said
    done = Comparison.load(tmp_path / "out")
    assert set(done.figures) == {"spa+lpr lpr_weight=0", "spa+lpr lpr_weight=1"}
    assert done.settings["spa+lpr lpr_weight=1"]["lpr_weight"] == 1
    # Oracle: the average calibration error on validation, bin by bin.
    errors = {}
    for value in ("0", "1"):
        folder = tmp_path / "out" / f"spa+lpr lpr_weight={value}" / "seed-0"
        val = measures.FinishedRun(folder).val
        probs, labels = val.link(val.logits.astype(float)).ravel(), val.labels.astype(float).ravel()
        bins = [(probs >= k / 10) & (probs < (k + 1) / 10) for k in range(10)]
        errors[value] = np.mean([abs((probs - labels)[b].mean()) for b in bins if b.any()])
    (choice,) = done.choices
    assert (choice.scores, choice.value) == (pytest.approx(errors), min(errors, key=errors.get))
    sentence = f"spa+lpr: lpr_weight={choice.value} has the best ace on validation"
    assert sentence in said
    for name in ("comparison.md", "comparison.html"):
        assert sentence in (tmp_path / "out" / name).read_text()
    assert list((tmp_path / "out" / "charts").glob("*.svg"))


def test_measures_and_columns_are_sklearns_and_the_papers_definitions(tmp_path):
    val, test = predictions(split="val"), predictions()
    found = measures.measure(outcome(tmp_path, val, test), queries=50)
    truth, probs = test.labels, expit(test.logits.astype(float))
    assert set(found) <= set(measures.MEASURES)
    assert found["mAP@class"] == pytest.approx(average_precision_score(truth, probs))
    assert found["Brier before"] == pytest.approx(brier_score_loss(truth.ravel(), probs.ravel()))
    out = ~truth.any(axis=1)
    assert found["zero-label AUROC"] == pytest.approx(roc_auc_score(~out, probs.max(axis=1)))
    assert found["zero-label MMC"] == pytest.approx(probs[out].max(axis=1).mean())
    assert found["Brier OUT before"] == pytest.approx((probs[out] ** 2).mean())
    assert found["retrieval n=1"] == pytest.approx(found["mAP@class"])
    found = columns.in_and_out(outcome(tmp_path / "one", test))
    assert found["OUT MMC"] == pytest.approx(100 * probs[out].max(axis=1).mean())
    top = test.labels[np.arange(len(probs)), probs.argmax(axis=1)]
    assert found["IN accuracy"] == pytest.approx(100 * top[~out].mean())
    labelled = outcome(tmp_path / "labelled", test.take(np.flatnonzero(~out)))
    assert columns.top_error(labelled)["error"] == pytest.approx(100 - found["IN accuracy"])
    with pytest.raises(DataError, match="validation split"):
        columns.average_sets(labelled, 5)


def test_image_effects_are_the_paired_bootstrap(tmp_path):
    # Oracle: both methods' figures of resampled images, each computed anew.
    # The errors of calibration are far from 0, where their modulus has a kink.
    first = predictions(300)
    first = replace(first, logits=first.logits + 1.5)
    second = replace(first, logits=first.logits + 0.7 * torch.randn(first.logits.shape).numpy())
    runs = [outcome(tmp_path / part, table) for part, table in (("a", first), ("b", second))]
    effects = [measures.image_effects(run) for run in runs]

    def figures(table):
        found = measures.probability_figures(Sigmoid(), table)
        given = table.logits, table.labels
        precisions = [average_precision(*given, by=by).value for by in ("label", "image")]
        return np.array([*precisions, found["ACE"], found["log loss"]])

    drawn = RNG.integers(300, size=(100, 300))
    gaps = [figures(first.take(rows)) - figures(second.take(rows)) for rows in drawn]
    names = ("mAP@class", "mAP@sample", "ACE before", "log loss before")
    for name, deviation in zip(names, np.std(gaps, axis=0), strict=True):
        gap = np.linalg.norm(effects[0][name] - effects[1][name])
        assert gap == pytest.approx(deviation, rel=0.25), name


def test_image_effects_of_copies_in_groups_are_those_of_single_images(tmp_path):
    once = predictions(100)
    rows = np.repeat(np.arange(100), 5)
    ids, group = [str(place) for place in range(500)], [f"{row:03}" for row in rows]
    many = replace(once.take(rows), ids=ids, group=group)
    first, second = (
        measures.image_effects(outcome(tmp_path / part, table))
        for part, table in (("a", once), ("b", many))
    )
    for name, effect in first.items():
        if name != "mAP@class":  # of which labels with few positives weigh a group more
            expected = effect * np.sqrt(100 / 99)
            np.testing.assert_allclose(second[name], expected, atol=1e-9, rtol=1e-6)
    expected = np.zeros(100)
    for scores, hits in zip(once.logits.T, once.labels.T == 1, strict=True):
        moved = ap_influence(scores, hits) / len(once.names)
        expected += np.sqrt(99 / 100) * moved / np.where(hits, 1 - 1 / hits.sum(), 0.99)
    np.testing.assert_allclose(second["mAP@class"], expected, atol=1e-9, rtol=1e-6)


def test_redrawn_images_are_in_the_interval_and_in_the_test(tmp_path):
    table = small_table()
    plan = ComparisonPlan(base(), ("bce", "asl"), redraw=True)
    done = compare(plan, tmp_path, executor=InProcess(table), say=lambda text: None)
    dealt = {}
    for method in plan.methods:
        for seed in plan.seeds:
            run = measures.FinishedRun(tmp_path / method / f"deal-{seed}")
            assert (len(run.train), len(run.val), len(run.test)) == (120, 60, 60)
            assert not {*run.train.ids} & {*run.test.ids}
            assert dealt.setdefault(seed, sorted(run.test.ids)) == sorted(run.test.ids)
    assert len({tuple(ids) for ids in dealt.values()}) == 3
    # Oracle: Nadeau and Bengio's corrected t-test by hand.
    values = np.array([[*by_seed.values()] for by_seed in done.column("mAP@class").values()])
    scale = np.sqrt(1 / 3 + 60 / 120)
    for one, found in zip(values, done.intervals("mAP@class").values(), strict=True):
        assert found.half_width == pytest.approx(student(2).ppf(0.975) * one.std(ddof=1) * scale)
    gap = values[0] - values[1]
    (difference,) = done.differences("mAP@class")
    expected = 2 * student(2).sf(abs(gap.mean()) / (gap.std(ddof=1) * scale))
    assert difference.p_value == pytest.approx(expected)
    assert not done.image_covariance
    assert Comparison.load(tmp_path) == done


def test_infinite_and_undefined_figures_are_told_apart(tmp_path):
    rows = {"a": {0: {"mAP@class": 0.5, "log loss before": np.inf}}, "b": {0: {"mAP@class": 0.4}}}
    saved = Comparison(rows, {"a": {}, "b": {}})
    saved.save(tmp_path)
    assert '"infinite"' in (tmp_path / "comparison.json").read_text()
    assert Comparison.load(tmp_path) == saved
    assert [row[1] for row in saved.cells(["log loss before"])[1]] == ["∞", "–"]
    assert show_figure(SeedMean(0.5, 0.4, 0.6, 3), percent=True) == "50.00 ± 10.00"
    assert show_figure(SeedMean(6.14, 6.0, 6.28, 3), percent=False) == "6.14 ± 0.14"


def test_a_dry_run_on_features_computes_none(tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    table = small_table(60)
    pictures = ArrayImages(RNG.integers(0, 255, (60, 8, 8, 3), dtype=np.uint8))
    export(replace(table, images=pictures), tmp_path / "photos.parquet")
    arguments = ["compare", "photos.parquet", "--methods", "bce", "--seeds", "2", "--dry-run"]
    arguments += ["--features", "small-cnn", "--set", "recipe.epochs=2", "--set", "image_size=8"]
    code, said = call(*arguments)
    assert not code
    assert re.search("2 runs, about.*the features of 60 images by small-cnn, not timed", said)
    typed = "--seeds 2 --set recipe.epochs=2 --set image_size=8 --features small-cnn"
    assert f"Next: labelwise compare photos.parquet --methods bce {typed}" in said
    assert not (tmp_path / "runs").exists()
    said = call(*arguments, "--jobs", "2")[1]
    assert "are trained in this process; leave out --engine ray and --jobs" in said


def one_label_each(rows, split):
    logits = torch.from_numpy(RNG.normal(size=(rows, 20)) * 2).float()
    chosen = torch.multinomial(logits.softmax(dim=1), 1)
    labels = torch.zeros(rows, 20, dtype=torch.uint8).scatter_(1, chosen, 1)
    names, ids = tuple(f"label {k}" for k in range(20)), [f"{split} {r}" for r in range(rows)]
    return Predictions(ids, logits, labels, None, names, split, Softmax())


def test_average_five_is_counted_over_images_and_over_classes_by_shot(tmp_path):
    train, val, test = (
        one_label_each(*part) for part in ((900, "train"), (400, "val"), (300, "test"))
    )
    train.labels[:, 0], train.labels[:, 1] = 0, 1  # one class seldom, one often
    found = columns.average_sets(outcome(tmp_path, train, val, test), 5)
    falling = np.sort(softmax(val.logits.astype(float), axis=1), axis=None)[::-1]
    place = 5 * len(val)  # the cut lies midway between the last chosen and the first left out
    chosen = softmax(test.logits.astype(float), axis=1) >= falling[place - 1 : place + 1].mean()
    truth, counts = test.labels == 1, train.labels.sum(axis=0)
    assert found["overall"] == pytest.approx(100 * (chosen & truth).sum() / len(test))
    recall = [100 * chosen[truth[:, k], k].mean() for k in range(20)]
    groups = {"few": counts < 20, "medium": (counts >= 20) & (counts <= 100), "many": counts > 100}
    assert all(members.any() for members in groups.values())
    for shot, members in groups.items():
        assert found[shot] == pytest.approx(np.mean(np.array(recall)[members]))


SMALL = {"backbone": "small-cnn", "precision": "32", "hardware.compile": False}


def test_a_table_is_run_beside_the_papers_figures(tmp_path, monkeypatch):
    official.write("cifar100", tmp_path / "data")
    for name, there in (("000-table2", True), ("001-table4", False)):
        assert has_data(EXPERIMENTS[name], tmp_path / "data") == there
    rows = ("binary", "softmax-or-none", "softmax-or-none at 77 % empty")
    small = {**SMALL, "recipe.epochs": 1, "batch_size": 60}
    given = {"quick": True, "seeds": (0, 1), "rows": rows, "overrides": small}
    request = Request("000-table2", tmp_path / "data", **given)
    messages, tables = [], []

    def say(text):
        written = tmp_path / "runs" / "table.md"
        tables.append(written.read_text() if written.exists() else "")
        messages.append(text)

    done = reproduce(request, tmp_path / "runs", say=say)
    assert len(messages) == 6  # two rows are one run
    assert re.match(r"\[1/4\] binary, seed-0: IN accuracy [\d.]+, OUT MMC [\d.]+, AUR", messages[0])
    assert all(words in tables[2] for words in ("- 2 runs are left.", "| binary |"))
    assert "| softmax-or-none |" not in tables[2]
    header, rows = done.cells()
    assert header[:5] == ["row", "", "IN accuracy", "OUT MMC", "AUROC"]
    assert (rows[0][:5], rows[1][1]) == (["binary", "paper", "77.8", "14.7", "0.901"], "ours")
    assert done.ours["binary"]["AUROC"].n == 2
    assert request.settings("softmax-or-none", 0).augment == "crop-flip+trivial"
    ours, shifted = (done.ours[row] for row in request.rows[1:])
    assert shifted["OUT MMC"].mean < ours["OUT MMC"].mean
    runs = tmp_path / "runs"
    assert not (runs / "softmax-or-none at 77 % empty").exists()  # both rows are one run
    assert (runs / "softmax-or-none" / "seed-0" / "predictions" / "val.parquet").exists()
    assert not (runs / "binary" / "seed-0" / "predictions" / "val.parquet").exists()
    # A figure that is infinite on one seed is so in the table, and nothing in JSON.
    both = iter([np.inf, 1.0])
    told = replace(EXPERIMENTS["000-table2"], figures=lambda run: {"AUROC": next(both)})
    monkeypatch.setitem(EXPERIMENTS, "000-table2", told)
    again = reproduce(replace(request, rows=("binary",)), runs, say=lambda text: None)
    assert again.cells()[1][1][:3] == ["", "ours", "∞"]
    written = json.loads((runs / "figures.json").read_text(), parse_constant=pytest.fail)
    assert [run["AUROC"] for run in written["binary"]] == ["infinite", 1.0]
    written = (runs / "table.md").read_text()
    assert "- backbone: published resnet18-32, here small-cnn" in written
    assert "are left" not in written


def test_runs_side_by_side_are_as_many_as_the_device_can_use(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    for gpu, workers in ((False, 1), (True, 2)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=gpu: there)
        assert default_workers() == workers
    (tmp_path / "control").touch()
    assert default_workers() == 4


def test_missing_data_says_what_to_put_where(tmp_path):
    request, folder = Request("001-table3", tmp_path), tmp_path / "coco"
    where = r"put into .*coco: MS-COCO 2014"
    folder.mkdir()
    with pytest.raises(DataError, match=f"needs data: {where}"):
        reproduce(request, tmp_path / "runs")
    (folder / "train2014").mkdir()
    with pytest.raises(DataError, match=f"instances_train2014.json: the file is missing; {where}"):
        reproduce(request, tmp_path / "runs")
    for wrong, words in (
        (Request("000-tabel2"), "did you mean '000-table2'"),
        (Request("000-table2", rows=("bnary",)), "has no row 'bnary'; did you mean 'binary'"),
        (Request("004-table2", rows=("role fine-tuned",), quick=True), "004-table2 has no quick"),
    ):
        with pytest.raises(SettingsError, match=words):
            wrong.chosen_rows()
    assert "pretrained" not in Request("000-table2").chosen_rows()  # its weights are fetched
    assert Request("000-table2", rows=("pretrained",)).chosen_rows() == ("pretrained",)
    assert Request("004-table2", quick=True).chosen_rows() == ("role linear",)
    assert Request("004-table2").chosen_rows() == ("role linear", "role fine-tuned")
    after = Request("004-table2", rows=("role linear-init",))
    assert after.chosen_rows() == ("role linear", "role linear-init")
    assert "role linear-init: starts where the linear row ended" in " ".join(after.deviations())


def test_a_plan_reckons_each_row_by_its_epochs_and_times_each_network_once(tmp_path, monkeypatch):
    official.write("cifar100", tmp_path / "data")
    rows = ("binary", "quasibinary", "softmax-or-none")
    given = {"quick": True, "seeds": (0,), "overrides": {**SMALL, "weights": "not there"}}
    request, timed = Request("000-table2", tmp_path / "data", rows=rows, **given), []

    def spy(settings, folder, **rest):
        timed.append((settings.method, settings.recipe.epochs))
        return train(settings, folder, **rest)

    monkeypatch.setattr("labelwise.papers.jobs.train", spy)
    jobs = list(jobs_of(request, tmp_path / "runs").values())
    long = replace(request, overrides={**request.overrides, "recipe.epochs": 60})
    jobs.append(jobs_of(replace(long, rows=("binary",)), tmp_path / "long")["binary", 0])
    found = seconds_of(jobs, open_data(request)[0])
    assert timed == [("bce", 2), ("softmax-or-none", 2)]
    binary, quasibinary, _, longer = (found[job.folder] for job in jobs)
    assert longer > binary == quasibinary > 0  # all of one pace
    assert not (tmp_path / "runs").exists()


def test_any_table_can_be_run_with_heads_on_frozen_features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    official.write("cifar100", tmp_path / "data")
    backbone = create_backbone("small-cnn", image_size=16)
    save_file(backbone.state_dict(), tmp_path / "w.safetensors")
    overrides = {"image_size": 16, "recipe.epochs": 1, "hardware.compile": False}
    given = {"seeds": (0, 1), "rows": ("softmax", "pretrained"), "overrides": overrides}
    frozen = Frozen("small-cnn", "w.safetensors")
    request = Request("000-table2", tmp_path / "data", frozen=frozen, **given)
    done = reproduce(request, tmp_path / "runs", say=lambda text: None)
    assert done.ours["pretrained"]["AUROC"].n == 2
    settings = request.settings("pretrained", 0)
    assert (settings.backbone, settings.method) == ("identity", "softmax-or-none")
    assert not settings.mirror  # features have no mirror image
    hidden = []
    for seed in (0, 1):
        run = measures.FinishedRun(tmp_path / "runs" / "softmax" / f"seed-{seed}")
        hidden.append(run.train.labels.sum(axis=1) == 0)
    assert not np.array_equal(*hidden)  # each seed has its own 40 classes
    (file,) = (tmp_path / "runs" / "features").iterdir()  # for all of them, once
    assert np.load(file).shape == (300, backbone.channels)


def test_runs_side_by_side_wait_say_how_far_they_are_and_see_one_label_an_image(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("labelwise.papers.jobs.REPORT_SECONDS", 0.02)
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: QUICK)
    table, watch = small_table(80), Counting()
    pictures = ArrayImages(RNG.integers(0, 255, (len(table), 8, 8, 3), dtype=np.uint8))
    truth = RNG.random((len(table), 4)) < 0.6
    several = LabelTable.from_arrays("abcd", pictures, truth, split=table.split)
    export(several, tmp_path / "several.parquet")
    small = {**SMALL, "weights": None, "image_size": 8, "recipe.epochs": 4}
    given = {"seeds": (0, 1), "rows": ("role linear-init",), "overrides": small}
    request = Request("004-table2", source=str(tmp_path / "several.parquet"), **given)
    waves = iter([LocalProcesses(2), InProcess()])

    def executor(jobs, watch):
        return next(waves)(jobs, watch)

    reproduce(request, tmp_path / "runs", executor=executor, say=lambda text: None, watch=watch)
    assert re.search(r"role linear, seed-1: epoch \d/4, 0.\d min left", "\n".join(watch.messages))
    for seed in request.seeds:
        linear = tmp_path / "runs" / "role linear" / f"seed-{seed}"
        after = tmp_path / "runs" / "role linear-init" / linear.name / "settings.yaml"
        tuned = read_settings(after, {})
        assert (tuned.freeze, Path(tuned.start)) == (0, linear)
        run = measures.FinishedRun(linear)
        assert run.train.labels.sum(axis=1).max() == 1
        assert not run.train.observed.all()
        assert run.test.labels.sum(axis=1).max() > 1


def test_an_executor_is_given_what_others_start_from_first(tmp_path):
    settings = base()
    first, again, free = (TrainingJob(settings, tmp_path / x) for x in ("first", "first", "free"))
    after = TrainingJob(settings.model_copy(update={"start": str(first.folder)}), tmp_path / "b")
    waves = []

    def executor(jobs, watch):
        waves.append([job.folder.name for job in jobs])
        yield from reversed(jobs)

    done = [job.folder.name for job in run_jobs([after, free, first, again], executor=executor)]
    assert waves == [["first"], ["b", "free"]]
    assert done == ["first", "free", "b"]


def test_a_worker_ends_with_the_command_that_is_killed(tmp_path, warm_commands):
    script = """
import sys
from pathlib import Path
from labelwise.papers.jobs import LocalProcesses, TrainingJob, run_jobs
from labelwise.training.settings import read_settings
values = {"data": "posterior", "backbone": "identity", "recipe.epochs": 2000, "method": "bce",
          "data_options": {"num_train": 2000, "num_val": 50, "num_test": 50, "num_labels": 4}}
if __name__ == "__main__":
    job = TrainingJob(read_settings(None, values), Path(sys.argv[1]) / "run")
    list(run_jobs([job], executor=LocalProcesses(1)))
"""
    (tmp_path / "jobs.py").write_text(script)
    folder = tmp_path / "run"

    def is_free():
        handle = os.open(folder, os.O_RDONLY)
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB) is None
        except BlockingIOError:
            return False
        finally:
            os.close(handle)

    with warm_commands.running([tmp_path], tmp_path, tmp_path / "jobs.py"):
        wait_until((folder / "metrics.jsonl").exists)
    wait_until(is_free)
    assert not (folder / "evaluation.json").exists()


# Tuning: every try of every method can be built and gives a finite loss.


def loss(name, **options):
    """Return the loss of a later epoch, some labels unknown: what waits for some has its turn."""
    objective = make_objective(name, contract.facts(400, 5), **options)
    logits, labels = contract.example(400, 5)
    observed = torch.rand(400, 5, generator=torch.Generator().manual_seed(0)) < 0.7
    for _ in range(5):
        contract.value(objective, logits, labels, observed)
        objective.step(0.1)
    return contract.value(objective, logits, labels, observed)


@pytest.mark.parametrize("name", METHODS)
def test_every_try_of_every_method_can_be_built(name):
    settings, tuning = base(method=name), METHODS[name].tuning
    first, *others = found = list(tries(settings, 20))
    assert first == settings
    assert found == list(tries(settings, 20))
    rates = np.array([one.recipe.optimizer.lr for one in found]) / settings.recipe.optimizer.lr
    assert 0.1 <= rates.min() < 0.2
    assert 5 < rates.max() <= 10
    assert torch.isfinite(loss(name, **others[-1].options))
    tried = {option: {one.options[option] for one in others} for option in tuning}
    assert tried == {option: set(values) for option, values in tuning.items()}
    assert all(one.options.keys() == tuning.keys() for one in others)
    fixed = {f"options.{option}": values[0] for option, values in tuning.items()}
    own = base(method=name, **fixed)  # what a user fixes is not tuned
    assert all(one.options == own.options for one in tries(own, 5))
    for option, values in tuning.items():  # each matters, and its default is among the values
        assert METHODS[name].options[option] in values
        assert len({loss(name, **{option: value}).item() for value in values}) == len(values)
