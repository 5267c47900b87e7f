"""The alarm against all outcomes and the exact binomial law; shares against a known truth."""

import itertools

import numpy as np
import pytest
from open_indexes import open_index
from scipy.stats import binom, norm
from web_setup import encoded, running

from labelwise.web.monitoring import ALPHA, audit_order, calibration_alarm, estimate_share


def test_evidence_is_one_on_average_if_probabilities_are_right():
    probs = np.array([0.02, 0.3, 0.5, 0.7, 0.9, 0.999])
    mean = 0.0
    for truth in itertools.product([False, True], repeat=6):
        chance = np.prod(np.where(truth, probs, 1 - probs))
        mean += chance * calibration_alarm("dog", probs, truth).evidence
    assert mean == pytest.approx(1.0)


def test_false_alarms_are_as_rare_as_promised_however_often_one_looks():
    random = np.random.default_rng(0)
    runs, photos = 400, 300
    raised = 0
    for _ in range(runs):
        probs = random.beta(0.5, 2, photos)
        raised += calibration_alarm("dog", probs, random.random(photos) < probs).raised
    # Ville: at most ALPHA per run. More than this many would refute it at one in a thousand.
    assert raised <= binom.ppf(0.999, runs, ALPHA)


def test_a_label_that_became_twice_as_frequent_is_noticed():
    random = np.random.default_rng(1)
    noticed = 0
    for _ in range(40):
        probs = random.beta(0.6, 3, 500)
        shifted = probs * 2 / (probs * 2 + (1 - probs) * (1 - 2 / 6) / (1 - 1 / 6))
        noticed += calibration_alarm("dog", probs, random.random(500) < shifted, 10).raised
    assert noticed >= 36


def test_too_sure_probabilities_are_noticed_and_the_alarm_stays():
    random = np.random.default_rng(2)
    odds = random.normal(0, 2, 600)
    probs, true = 1 / (1 + np.exp(-2 * odds)), 1 / (1 + np.exp(-odds))
    bad = random.random(600) < true
    alarm = calibration_alarm("dog", probs, bad)
    assert alarm.raised
    good = random.random(3000) < 0.5
    after = calibration_alarm("dog", [*probs, *[0.5] * 3000], [*bad, *good])
    assert after.raised
    assert (alarm.audited, alarm.present) == (600, bad.sum())
    assert alarm.expected == pytest.approx(probs.sum())


def test_certain_answers_that_are_wrong_are_evidence_not_an_error():
    alarm = calibration_alarm("dog", [0.0, 1.0] * 50, [True, False] * 50)
    assert np.isfinite(alarm.evidence)
    assert alarm.raised


@pytest.mark.parametrize("now", [0.05, 0.2, 0.5])
def test_the_share_of_a_label_is_found_from_probabilities(now):
    """Scores of two normal laws: the posterior under the old share is exact."""
    random = np.random.default_rng(3)
    before, inside = 0.2, 0
    for _ in range(60):
        truth = random.random(2000) < now
        x = random.normal(np.where(truth, 2.0, 0.0))
        present, absent = before * norm.pdf(x, 2), (1 - before) * norm.pdf(x, 0)
        share = estimate_share("dog", present / (present + absent), before)
        inside += share.low <= now <= share.high
        assert share.now == pytest.approx(now, abs=0.08)
    assert inside >= binom.ppf(0.001, 60, 0.95)
    assert share.moved == (now != before)


def test_audits_are_drawn_by_label_and_row_alone():
    rows = np.arange(20_000)
    dog, cat = audit_order("dog", rows), audit_order("cat", rows)
    assert (audit_order("dog", rows[7:9]) == dog[7:9]).all()
    assert len(np.unique(dog)) == len(rows)
    assert abs(np.corrcoef(dog.astype(float), cat.astype(float))[0, 1]) < 0.03
    assert abs(np.corrcoef(dog.astype(float), rows)[0, 1]) < 0.03


def test_only_drawn_photos_count_as_audited(run, own_library):
    with running(run, own_library, decoders=0) as server:
        first = server.get("/api/v1/review?by=audit&count=8")["questions"]
        assert len({(one["id"], one["label"]) for one in first}) == 8
        assert {one["label"] for one in first} == {"beach", "cat", "dog", "row"}
        one = first[0]
        path = f"/api/v1/photos/{one['id']}/labels"
        assert server.put(path, {"labels": {one["label"]: "present"}})[0] == 200

        def audited():
            return {a["label"]: a for a in server.get("/api/v1/trust")["alarms"]}

        assert audited()[one["label"]]["audited"] == 0  # a correction is no audit
        again = server.get("/api/v1/review?by=audit&count=8")["questions"]
        assert one["id"] in {q["id"] for q in again if q["label"] == one["label"]}
        given = {"labels": {one["label"]: "absent"}, "source": "audit"}
        assert server.put(path, given)[0] == 200
        alarm = audited()[one["label"]]
        assert (alarm["audited"], alarm["present"]) == (1, 0)
        assert alarm["expected"] == pytest.approx(one["probability"])
        # Changing one's mind keeps the photo in the sample.
        assert server.put(path, {"labels": {one["label"]: "present"}})[0] == 200
        assert audited()[one["label"]]["present"] == 1
        text = server.send("GET", "/metrics")[2].decode()
        assert f'labelwise_calibration_evalue{{label="{one["label"]}"}}' in text


def test_an_alarm_is_raised_where_everything_is_wrong(run, own_library):
    with running(run, own_library, decoders=0) as server:
        for _ in range(6):
            for one in server.get("/api/v1/review?by=audit&count=8")["questions"]:
                state = "absent" if one["probability"] >= 0.5 else "present"
                path = f"/api/v1/photos/{one['id']}/labels"
                given = {"labels": {one["label"]: state}, "source": "audit"}
                assert server.put(path, given)[0] == 200
        index = open_index(own_library)
        told = [one for one in index.store.corrections("dog") if one.source == "audit"]
        index.store.close()
        assert len(told) == 12
        alarm = next(a for a in server.get("/api/v1/trust")["alarms"] if a["label"] == "dog")
        assert alarm["audited"] == 12
        assert alarm["evidence"] > 1


def test_recent_pictures_tell_the_share_of_a_label(run):
    with running(run, decoders=0) as server:
        files = [(f"{n}.png", encoded(seed=n)) for n in range(60)]
        assert server.upload(*files)[0] == 200
        shares = server.get("/api/v1/trust")["shares"]
        assert {one["label"] for one in shares} == {"beach", "cat", "dog", "row"}
        assert {one["photos"] for one in shares} == {60}
        text = server.send("GET", "/metrics")[2].decode()
        assert 'labelwise_label_share{label="dog"}' in text


def test_promises_are_shown_and_checked_on_reviewed_photos(run, own_library, tmp_path):
    import shutil

    from labelwise.decide import Promise
    from labelwise.models.run_folder import RunFolder

    promise = Promise("recall", 0.5, 0.9, 100, 90, 0.6, "promise photos", "2026-01-01", "exact")
    folder = tmp_path / "promised"
    shutil.copytree(run, folder)
    spec = RunFolder(folder).spec.model_copy(update={"promises": (promise.spec(),)})
    spec.save(folder / "model.json")
    with running(folder, own_library, decoders=0) as server:
        (one,) = server.get("/api/v1/promises")
        assert one["verdict"] == "cannot tell"
        assert one["text"] == str(promise)
        hits = server.get("/api/v1/search?q=dog")["hits"]
        # Read before the first correction, which changes what the model says of the others.
        for photo in [server.get(f"/api/v1/photos/{hit['id']}") for hit in hits]:
            wrong = {
                label["label"]: "absent" if label["decided"] else "present"
                for label in photo["labels"]
            }
            assert server.put(f"/api/v1/photos/{photo['id']}/labels", {"labels": wrong})[0] == 200
        (one,) = server.get("/api/v1/promises")
        assert one["verdict"] == "broken"
        assert "on 12 new photos" in one["checked"]
