"""A run folder against what was put into it, whole and damaged."""

import json
from dataclasses import replace

import pytest
from forged import facts_of
from sample_scores import NAMES, sample, spec_of
from tiny_predictor import make

from labelwise.calibration import Platt
from labelwise.decide import TopK
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.evaluation import evaluate
from labelwise.learn.methods import link_to_spec
from labelwise.links import Sigmoid
from labelwise.models.run_folder import RunFolder


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path / "run")


def test_everything_in_a_run_is_found_by_name(run):
    predictions = sample(40)
    predictions.save(run.predictions_path("test"))
    evaluation = evaluate(predictions, Sigmoid(), TopK(1))
    evaluation.save(run.evaluation_path)
    run.settings_path.write_text("method: bce\nseed: 3\n")
    run.journal.write({"step": 1, "loss": 2.0})
    assert not run.is_finished
    make().save(run.path)
    assert run.is_finished
    assert (run.settings, run.splits) == ({"method": "bce", "seed": 3}, ("test",))
    assert list(run.predictions("test").ids) == list(predictions.ids)
    assert (run.evaluation, run.journal.read()) == (evaluation, [{"step": 1, "loss": 2.0}])
    assert (run.spec.made_rule, run.model().space) == (make().rule, make().space)
    (run.path / "notes.txt").write_text("mine")
    run.report.write_text("page")
    run.checkpoint.mkdir()
    run.clear()
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]


def test_what_is_missing_is_named(run):
    for ask, sentence in (
        (lambda: run.settings, "is not the folder of a run"),
        (lambda: run.predictions("val"), "no predictions of 'val'; there are: none"),
        (lambda: run.evaluation, "no evaluation.json; give a finished run"),
        (lambda: run.spec, "model.json does not exist; give the folder of a finished run"),
    ):
        with pytest.raises(CheckpointError, match=sentence):
            ask()
    assert run.journal.read() == []
    run.path.mkdir()
    for text, told in (
        ("a: [", r"^[^\n]*settings.yaml cannot be read: [^\n]*line 1[^\n]*$"),
        ("- 3", "must hold settings by name"),
    ):
        run.settings_path.write_text(text)
        with pytest.raises(CheckpointError, match=told):
            run.settings  # noqa: B018


def test_a_journal_cut_anywhere_goes_on(run):
    """The oracle is the list of records that were whole before the cut."""
    run.path.mkdir()
    records = [{"step": step, "note": "größer"} for step in range(4)]
    for record in records:
        run.journal.write(record)
    whole = run.journal.path.read_bytes()
    size = len(whole) // 4
    for end in range(len(whole)):
        run.journal.path.write_bytes(whole[:end])
        # Where only the end of the line is missing, its record is whole.
        assert run.journal.read() == records[: (end + 1) // size]
        journal = run.journal
        journal.cut(len(whole))
        assert journal.size == end // size * size
        journal.write({"step": "new"})
        assert run.journal.read() == [*records[: end // size], {"step": "new"}]


def test_a_damaged_line_is_left_out_and_said(run):
    run.path.mkdir()
    lines = [b'{"step": 1}', b"\0\0\0", b"\xff\xfe", b"[1]", b'{"step": 2}', b""]
    run.journal.path.write_bytes(b"\n".join(lines))
    with pytest.warns(UserWarning, match=r"metrics.jsonl: line \d is damaged") as caught:
        assert run.journal.read() == [{"step": 1}, {"step": 2}]
    assert len(caught) == 3


def test_one_process_at_a_time_and_leftovers_go(run):
    (run.path / "checkpoint" / ".00000003.9.partial").mkdir(parents=True)
    (run.path / ".model.json.9.partial").touch()
    with run.lock():
        assert [path.name for path in run.path.rglob("*")] == ["checkpoint"]
        with pytest.raises(LabelwiseError, match="another process is training in"), run.lock():
            pass
    with run.lock():
        pass


def test_a_spec_round_trips_and_says_what_is_wrong(run):
    spec = spec_of(NAMES, Sigmoid(), TopK(2))
    path = run.path / "model.json"
    spec.save(path)
    assert run.spec == spec
    facts = facts_of(path)
    per_label = link_to_spec(Platt(Sigmoid(), [1.0, 2.0], [0.0, 0.0], 30.0))
    for change, sentence in (
        ({"labels": 3}, "'labels': "),
        ({"labels": ["a", "a"]}, "label names must be distinct, got 'a' twice"),
        ({"backbone": {"name": "small-cnn"}}, "'backbone.channels' is missing"),
        ({"backbone": {"name": "small-cnn", "channels": -1}}, "'backbone.channels': "),
        ({"transform": {"size": 10**9}}, "size must lie between 1 and 8192, got 1000000000"),
        ({"transform": {"size": 32, "mean": [1, 2]}}, "mean and std must be three numbers"),
        ({"mirrored": "maybe"}, "'mirrored': "),
        ({"crops": True}, "must be a number, got true"),
        ({"link": "sigmoid"}, "'link': "),
        ({"link": {"kind": ["x"]}}, "the link cannot be used: "),
        ({"link": {"kind": "sigmoidd"}}, "unknown link 'sigmoidd'; did you mean 'sigmoid'"),
        ({"link": per_label}, "the link cannot be used: "),
        ({"rule": {"kind": "threshold", "value": [0.1, 0.2]}}, "the rule cannot be used: probs"),
        ({"rule": {"kind": "threshold", "value": "high"}}, "the rule cannot be used: "),
        ({"rule": None}, "'rule': "),
        ({"promises": {}}, "'promises': "),
        ({"weights_sha256": "x"}, "'weights_sha256': "),
        ({"surprise": 1}, "unknown entry 'surprise'"),
    ):
        path.write_text(json.dumps(facts | change))
        with pytest.raises(CheckpointError) as error:
            run.spec  # noqa: B018
        assert sentence in str(error.value)
        assert "\n" not in str(error.value)
    for content in (b"\xff", b"[" * 100_000, b"nul"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="is not JSON"):
            run.spec  # noqa: B018


@pytest.mark.parametrize(
    ("splits", "cross_fit", "expected", "may_promise"),
    [
        (("train", "val", "test"), False, ("test",), True),
        (("train", "val", "promise"), False, ("promise",), True),
        (("train", "val", "promise", "test"), False, ("promise", "test"), True),
        (("train", "val", "promise", "test"), True, ("test",), True),
        (("train", "val", "promise"), True, ("promise",), False),
        (("train", "val"), False, ("val",), False),
        (("train",), False, (), None),
    ],
)
def test_held_out_photos_are_those_that_fitted_nothing(
    run, splits, cross_fit, expected, may_promise
):
    """Oracle: what each split is used for, by hand."""
    for number, split in enumerate(splits):
        rows = sample(20, seed=number)
        replace(rows, ids=[f"{split} {n}" for n in range(20)]).save(run.predictions_path(split))
    run.settings_path.write_text(f"cross_fit: {str(cross_fit).lower()}\n")
    found = run.held_out()
    if not expected:
        assert found is None
        return
    assert (found.splits, found.may_promise) == (expected, may_promise)
    assert str(found) == " and ".join(expected)
    assert list(found.predictions.ids) == [f"{split} {n}" for split in expected for n in range(20)]


def test_data_is_found_from_another_folder(run, tmp_path, monkeypatch):
    run.path.mkdir()
    run.settings_path.write_text("data: tables/photos.csv\n")
    table = tmp_path / "tables" / "photos.csv"
    table.parent.mkdir()
    table.write_text("path,labels\n")
    monkeypatch.chdir(tmp_path)
    assert run.data == "tables/photos.csv"
    monkeypatch.chdir(run.path)
    assert run.data == str(table)
