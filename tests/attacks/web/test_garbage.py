"""The event loop does not wait for a search through every object of the program.

Oracles: what Python's own collector says it would go through, and how many objects are set aside.
"""

import gc

import labelwise.server.serving as serving
from labelwise.server import ServeSettings


def test_only_what_is_new_is_searched():
    gc.collect()
    before = len(gc.get_objects())
    with serving.only_new_garbage():
        assert gc.get_freeze_count() > 0.9 * before
        assert len(gc.get_objects()) < 0.1 * before
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > 0.9 * before


def test_a_server_runs_so(monkeypatch):
    frozen = []
    monkeypatch.setattr(
        serving.Server, "run", lambda *_, **__: frozen.append(gc.get_freeze_count())
    )
    serving.serve(lambda *_: None, ServeSettings(port=0))
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0
