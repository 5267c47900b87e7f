"""A shadow model beside the one that serves. Oracle: ``Predictor`` on both folders, by hand."""

import json
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from patience import PATIENCE, wait_until
from search_setup import save_model
from test_batching import metrics
from web_setup import encoded, running

from labelwise.errors import SettingsError
from labelwise.models import Predictor
from labelwise.server import shadow as shadow_module
from labelwise.server.served_model import ServedModel
from labelwise.server.shadow_comparison import ShadowComparison
from labelwise.types import LabelSpace

NAMES = ("dog", "beach", "unicorn")
COMMON = ["beach", "dog"]  # in the order of the model that serves


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("shadow") / "other", seed=7, labels=NAMES)


def by_hand(folder, contents):
    predictor = Predictor.load(folder)
    found = predictor.predict(contents)
    columns = [predictor.space.names.index(name) for name in COMMON]
    return found.probs.numpy()[:, columns], found.sets.numpy()[:, columns]


def test_differences_are_those_of_the_two_models(run, other):
    contents = [encoded(seed=seed) for seed in range(6)]
    with running(run, decoders=0, shadow=other, shadow_share=1.0) as server:
        for content in contents[:4]:
            assert server.upload(("a.png", content))[0] == 200
        assert server.upload(*[("a.png", one) for one in (*contents[4:], b"broken")])[0] == 200
        wait_until(lambda: server.get("/api/v1/shadow")["pictures"] == 6)
        found = server.get("/api/v1/shadow")
        text = metrics(server)
        assert [one["name"] for one in server.get("/api/v1/models")] == ["tiny"]
    (ours, our_sets), (theirs, their_sets) = by_hand(run, contents), by_hand(other, contents)
    apart = np.abs(ours - theirs)
    for at, one in enumerate(found["labels"]):
        assert one["label"] == COMMON[at]
        assert one["both"] == (our_sets & their_sets)[:, at].sum()
        assert one["only_served"] == (our_sets & ~their_sets)[:, at].sum()
        assert one["only_shadow"] == (their_sets & ~our_sets)[:, at].sum()
        assert one["mean_difference"] == pytest.approx(apart[:, at].mean(), abs=1e-6)
        assert one["largest_difference"] == pytest.approx(apart[:, at].max(), abs=1e-6)
        counted = f'labelwise_shadow_decided_total{{by="shadow",label="{COMMON[at]}"}}'
        assert f"{counted} {float(one['only_shadow'])}" in text
    agreed = int((our_sets == their_sets).all(axis=1).sum())
    assert (found["agreed"], found["skipped"], found["failed"]) == (agreed, 0, 0)
    assert found["sentence"].startswith(f"Of 6 pictures, {agreed} get the same labels")
    assert (found["only_of_served"], found["only_of_shadow"]) == (["cat", "row"], ["unicorn"])
    assert f"labelwise_shadow_agreed_total {float(agreed)}" in text


def test_a_share_of_the_requests_goes_to_the_shadow(run, other):
    with running(run, decoders=0, shadow=other, shadow_share=0.25) as server:
        for seed in range(8):
            assert server.upload(("a.png", encoded(seed=seed)))[0] == 200
        wait_until(lambda: server.get("/api/v1/shadow")["pictures"] == 2)


def test_nobody_waits_for_the_shadow_and_what_it_has_no_time_for_is_skipped(
    run, other, monkeypatch
):
    go, real = threading.Event(), ServedModel.forward

    def slow(self, pixels, names):
        if self.name == "shadow" and threading.current_thread().name.startswith("load"):
            return real(self, pixels, names)
        if self.name == "shadow":
            raise RuntimeError("not today")
        return real(self, pixels, names)

    def opened(self, spec, upload):
        if spec.space.names == NAMES:
            go.wait(PATIENCE)
        return open_picture(self, spec, upload)

    from labelwise.server.service import Service

    open_picture = Service._open
    monkeypatch.setattr(ServedModel, "forward", slow)
    monkeypatch.setattr(Service, "_open", opened)
    monkeypatch.setattr(shadow_module, "MOST_PICTURES", 2)
    with running(run, decoders=2, shadow=other, shadow_share=1.0) as server:
        for seed in range(5):
            assert server.upload(("a.png", encoded(seed=seed)))[0] == 200
            if not seed:
                wait_until(lambda: server.app.service.shadow._waiting == 1)
        go.set()
        wait_until(lambda: server.get("/api/v1/shadow")["failed"] == 2)
        assert server.get("/api/v1/shadow")["skipped"] == 3
        assert server.get("/api/v1/shadow")["pictures"] == 0


def test_a_comparison_begins_anew_with_another_model(run, other, tmp_path):
    own = shutil.copytree(other, tmp_path / "other")
    with running(run, decoders=0, shadow=own, shadow_share=1.0) as server:
        assert server.upload(("a.png", encoded()))[0] == 200
        wait_until(lambda: server.get("/api/v1/shadow")["pictures"] == 1)
        before = server.get("/api/v1/shadow")["shadow"]
        save_model(own, seed=8, labels=NAMES)
        status, _, body = server.post("/api/v1/shadow/reload", {})
        assert status == 200, body
        assert json.loads(body)["pictures"] == 0
        assert json.loads(body)["shadow"] != before
        assert server.upload(("a.png", encoded()))[0] == 200
        wait_until(lambda: "labelwise_shadow_pictures_total 1.0" in metrics(server))
        save_model(own, seed=8, labels=("nothing", "else"))
        refused = server.problem(server.post("/api/v1/shadow/reload", {}), 409)
        assert "shares no label with 'tiny'" in refused


def test_a_served_model_that_the_shadow_cannot_follow_is_refused(run, other, tmp_path):
    own = shutil.copytree(run, tmp_path / "tiny")
    with running(own, decoders=0, shadow=other, shadow_share=1.0) as server:
        before = server.get("/api/v1/shadow")["served"]
        save_model(own, seed=4, labels=("nothing", "else"))
        refused = server.problem(server.post("/api/v1/models/tiny/reload", {}), 409)
        assert "'tiny' goes on as it was, because the shadow model shares no label" in refused
        assert server.upload(("a.png", encoded()))[0] == 200
        wait_until(lambda: server.get("/api/v1/shadow")["pictures"] == 1)
        assert server.get("/api/v1/shadow")["served"] == before
        save_model(own, seed=4, labels=("beach", "sea"))
        assert server.post("/api/v1/models/tiny/reload", {})[0] == 200
        now = server.get("/api/v1/shadow")
        assert (now["pictures"], [one["label"] for one in now["labels"]]) == (0, ["beach"])
        assert now["served"] != before


def test_the_loop_that_answers_requests_does_not_write_out_every_label(run, other, monkeypatch):
    real, threads = ShadowComparison.view, []

    def noted(self, share):
        threads.append(threading.current_thread().name)
        return real(self, share)

    monkeypatch.setattr(ShadowComparison, "view", noted)
    with running(run, decoders=0, shadow=other) as server:
        server.get("/api/v1/shadow")
        assert server.post("/api/v1/shadow/reload", {})[0] == 200
        metrics(server)
    assert len(threads) >= 3
    assert all(name.startswith("aside") for name in threads)


def test_labels_in_common_are_found_in_linear_time():
    """Held to: how often names are gone through, whatever their number."""

    class Names(tuple):
        reads = 0

        def __iter__(self):
            Names.reads += 1
            return super().__iter__()

    names = Names(f"label {number}" for number in range(50))
    model = SimpleNamespace(name="a", names=names, spec=SimpleNamespace(space=LabelSpace(names)))
    Names.reads = 0
    assert len(ShadowComparison.begin(model, model).labels) == 50
    assert Names.reads < 5  # and not once for each of the 50


def test_without_a_shadow_that_is_said(server):
    for answer in (server.send("GET", "/api/v1/shadow"), server.post("/api/v1/shadow/reload", {})):
        assert server.problem(answer, 404).endswith("start the server with --shadow RUN")


def test_a_shadow_without_a_common_label_is_refused(run, tmp_path):
    strange = save_model(tmp_path / "strange", labels=("x", "y"))
    with pytest.raises(SettingsError, match="shares no label"), running(run, shadow=strange):
        pass
