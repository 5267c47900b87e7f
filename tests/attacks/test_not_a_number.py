"""Numbers that are not numbers: refused wherever a file brings them, and never answered with.

Held to IEEE 754: a NaN or an infinity in any number must end in one sentence that names it.
"""

import json
import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from forged import facts_of
from search_setup import picture, save_model

from labelwise.calibration import beta, histogram, isotonic, platt, temperature
from labelwise.decide import AtMost, ExpectedF, Promise, Threshold
from labelwise.errors import CheckpointError, LabelwiseError
from labelwise.links import Link, Sigmoid, Softmax, check_log_probs
from labelwise.methods import link_from_spec, link_to_spec, rule_from_spec, rule_to_spec
from labelwise.models import ModelSpec
from labelwise.models.scoring import scored
from labelwise.objectives import PhiLink, QuasibinaryLink, SPALink
from labelwise.pictures import Transform
from labelwise.predictions import Predictions
from labelwise.types import LabelSpace

BAD = (math.nan, math.inf, -math.inf, 1e300, 10**400)
TOO_LONG = (2**64, -(2**63))  # integers that arrays do not take: predict ended in OverflowError


def fitted(fit):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(300, 3, generator=generator)
    labels = (torch.rand(300, 3, generator=generator) < logits.sigmoid()).float()
    return fit(logits, labels, Sigmoid())


LINKS = [
    Softmax(2.0),
    PhiLink(1.0, 2.0),
    SPALink(),
    QuasibinaryLink(1.5),
    *(fitted(fit) for fit in (platt, beta, isotonic, histogram, temperature)),
]
RULES = [Threshold(0.5), Threshold((0.1, 0.2, 0.3)), ExpectedF(2.0), AtMost(Threshold(0.5), 2)]


def places(value, path=()):
    """Yield the path of every number in plain data."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from places(child, (*path, key))
    elif isinstance(value, list | tuple):
        for key, child in enumerate(value):
            yield from places(child, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def planted(value, path, bad):
    """Return a copy of plain data with another number at a path."""
    value = json.loads(json.dumps(value))
    node = value
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = bad
    return value


def planted_in(made, bad):
    """Yield how a link or rule is read with a bad number at each of some 25 places."""
    is_link = isinstance(made, Link)
    spec = (link_to_spec if is_link else rule_to_spec)(made)
    read = link_from_spec if is_link else rule_from_spec
    read(json.loads(json.dumps(spec)))
    found = list(places(spec))
    assert found
    for path in found[:: max(1, len(found) // 25)]:
        yield lambda path=path: read(planted(spec, path, bad))


@pytest.mark.parametrize("made", [*LINKS, *RULES], ids=lambda made: made.kind)
def test_every_number_of_a_link_or_rule_must_be_a_finite_number(made):
    """A threshold of "1e999" was infinite: no photo had a label any more."""
    wrong = [(bad, "must be finite") for bad in (*BAD, *TOO_LONG)]
    for bad, words in [*wrong, *((bad, "cannot be made") for bad in ("1e999", "0.5", True, False))]:
        for reading in planted_in(made, bad):
            with pytest.raises(LabelwiseError, match=words):
                reading()


def test_a_whole_number_is_as_good_as_its_fraction():
    """The square of a beta of 2**53 is no number that an array takes."""
    probs = torch.rand(20, 3, generator=torch.Generator().manual_seed(2))
    for whole in (2, 2**31, 2**53):
        read = rule_from_spec(json.loads(json.dumps({"kind": "expected-f", "beta": whole})))
        assert torch.equal(read(probs), ExpectedF(float(whole))(probs))


PROMISE = Promise("recall", 0.9, 0.95, 200, 150, 0.93, "test photos", "2026-01-01", "exact")


@pytest.mark.parametrize("bad", BAD)
def test_a_model_with_a_number_that_is_none_is_not_loaded(tmp_path, bad):
    save_model(tmp_path)
    file = tmp_path / "model.json"
    good = facts_of(file) | {"promises": [PROMISE.spec()]}
    file.write_text(json.dumps(good))
    assert ModelSpec.load(file).promises == (PROMISE.spec(),)
    for part in ("rule", "promises", "transform"):
        for path in places(good[part]):
            file.write_text(json.dumps(planted(good, (part, *path), bad)))
            with pytest.raises(CheckpointError, match=r"model\.json is not usable"):
                ModelSpec.load(file)
    with pytest.raises(ValueError, match="finite"):
        Transform(8, mean=(0.5, math.nan, 0.5))


def test_predict_with_a_nan_in_the_link_says_so_and_writes_nothing(tmp_path, warm_commands):
    model = save_model(tmp_path / "model")
    picture(tmp_path / "a.png", 1)
    facts = facts_of(model / "model.json")
    link = {"kind": "platt", "link": {"kind": "sigmoid"}, "slope": [1.0] * 4}
    facts["link"] = link | {"offset": [0.0, math.nan, 0.0, 0.0], "limit": 50.0}
    (model / "model.json").write_text(json.dumps(facts))
    done = warm_commands.run(["predict", "model", "a.png", "-o", "out.csv"], tmp_path)
    assert done.returncode == 1
    assert "every number of the link must be finite, got nan at 'offset.1'" in done.stderr
    assert not (tmp_path / "out.csv").exists()
    parts = {"link": NeverNumbers(), "rule": Threshold(0.5)}
    damaged = SimpleNamespace(space=LabelSpace(("a", "b")), **parts)
    with pytest.raises(CheckpointError, match="6 of 6 probabilities are not numbers"):
        scored(damaged, torch.zeros(3, 2))
    pair = torch.zeros(2), torch.tensor([0.0, -math.inf])  # certain is a number
    assert check_log_probs(*pair) == pair


class NeverNumbers(Link):
    """A link that answers NaN, as a damaged one inside a process would."""

    kind = "never-numbers"

    def log_probs(self, logits):
        return logits * math.nan, logits


def test_predictions_with_a_nan_name_the_row(tmp_path):
    path = tmp_path / "p.parquet"
    logits = torch.tensor([[0.0, math.inf], [1.0, -2.0]])  # certain is a number
    truth = torch.tensor([[0.0, 1.0], [1.0, 0.5]])
    good = Predictions(["a", "b"], logits, truth, None, ("x", "y"), "test", Sigmoid())
    good.save(path)
    assert np.array_equal(Predictions.load(path).logits, good.logits)
    table = pq.read_table(path)
    for column, value, words in (
        ("logits", math.nan, "logits: row 2 must hold numbers, got nan"),
        ("labels", math.nan, "labels: row 2 must hold numbers between 0 and 1"),
        ("labels", 7.0, "labels: row 2 must hold numbers between 0 and 1"),
    ):
        values = pa.array([table[column][0].as_py(), [1.0, value]], table.schema.field(column).type)
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, values), path)
        with pytest.raises(CheckpointError, match=words):
            Predictions.load(path)
