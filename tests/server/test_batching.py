"""Batches, against a model that only counts, and connections that come at once."""

import asyncio
import gc
import math
import socket
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from patience import PATIENCE, wait_until
from web_setup import encoded, form, running, status_of, upload_head

from labelwise.errors import ImageError
from labelwise.learn.predictor import Predictor
from labelwise.models.run_folder import RunFolder
from labelwise.server import ServeSettings
from labelwise.server.batching import Batcher, BusyError, PictureQueue, Tagged, model_thread
from labelwise.server.bodies import Upload
from labelwise.server.monitoring import Monitor
from labelwise.server.service import ServedModel
from labelwise.server.serving import ACCEPTED_AT_ONCE, Server, listen, server_config


class Recorder:
    """Opens pictures and answers them when it is let, and remembers how."""

    def __init__(self, opening=0.0):
        self.batches, self.opening = [], opening
        self.monitor = Monitor()
        self.gate, self.passing = threading.Event(), threading.Event()
        self.gate.set()

    def open(self, upload):
        time.sleep(self.opening)
        if upload.content == b"bad":
            raise ImageError(f"{upload.name}: bad")
        return np.full((2, 2, 3), int(upload.content), np.uint8)

    def forward(self, pixels, names):
        self.passing.set()
        self.gate.wait(PATIENCE)
        self.batches.append(list(names))
        return [
            Tagged(name, None, one[:1, 0, 0].astype(float), one[:1, 0, 0] > 0)
            for name, one in zip(names, pixels, strict=True)
        ]

    def told(self, name):
        """What is shown at /metrics."""
        return self.monitor.registry.get_sample_value(f"labelwise_{name}")


def upload(number):
    return Upload(str(number), str(number).encode())


def run(work, *recorders, max_queue=16, **options):
    """Run a coroutine with batchers of one queue around it."""
    how = {"max_batch": 4, "max_wait": 0.2, **options}
    limits = {"max_queue": max_queue, "client_queue": max_queue, "openers": 4}

    async def main():
        queue, thread = PictureQueue(monitor=recorders[0].monitor, **limits), model_thread()
        made = [Batcher(queue, one.open, one.forward, model=thread, **how) for one in recorders]
        try:
            return await work(*made)
        finally:
            for one in recorders:
                one.gate.set()
            queue.stop()
            thread.shutdown()

    return asyncio.run(main())


def test_each_picture_gets_its_own_answer_and_passes_are_shared():
    recorder = Recorder(opening=0.01)

    async def work(batcher):
        requests = [batcher.tag([upload(10 * n + k) for k in range(3)]) for n in range(4)]
        return await asyncio.gather(*requests)

    for number, answers in enumerate(run(work, recorder, max_wait=PATIENCE)):
        assert [one.name for one in answers] == [str(10 * number + k) for k in range(3)]
        assert [one.probs[0] for one in answers] == [10 * number + k for k in range(3)]
    assert max(map(len, recorder.batches)) <= 4
    assert len(recorder.batches) < 12
    assert recorder.told("batch_size_sum") == sum(map(len, recorder.batches)) == 12
    assert recorder.told("batch_size_count") == recorder.told("forward_seconds_count")
    assert recorder.told("batch_size_count") == len(recorder.batches)
    assert recorder.told("open_seconds_sum") >= 12 * recorder.opening


def test_a_picture_alone_does_not_wait_and_gives_its_place_back_once():
    async def work(batcher):
        place = batcher.queue.reserve("")
        with pytest.raises(BusyError):
            batcher.queue.reserve("")
        (answer,) = await asyncio.wait_for(batcher.tag([upload(3)], place), PATIENCE)
        place.fit(0)
        assert batcher.queue.under_way == 0
        return answer

    assert run(work, Recorder(), max_queue=1, max_wait=2 * PATIENCE).probs[0] == 3


def test_models_take_turns_however_many_pictures_one_of_them_has():
    """Oracle: the order of passes, worked out by hand: one each, until the second has no more."""
    many, few = Recorder(), Recorder()
    few.gate, few.batches = many.gate, many.batches
    many.gate.clear()

    async def work(one, other):
        waiting = [asyncio.create_task(one.tag([upload(0)]))]
        await asyncio.to_thread(many.passing.wait, PATIENCE)
        for batcher, numbers in ((one, range(20)), (other, [100]), (other, range(101, 106))):
            more = one.queue.under_way + len(numbers)
            waiting.append(asyncio.create_task(batcher.tag([upload(n) for n in numbers])))
            while one.queue.under_way < more or batcher.opening:
                await asyncio.sleep(0.001)
        many.gate.set()
        await asyncio.gather(*waiting)

    run(work, many, few, max_queue=64, max_wait=0)
    assert [int(names[0]) < 100 for names in many.batches] == [True, False] * 3 + [True] * 3
    assert [len(names) for names in many.batches if int(names[0]) >= 100] == [1, 4, 1]


def test_who_has_gone_leaves_the_batch():
    recorder = Recorder()
    recorder.gate.clear()

    async def work(batcher):
        blocker = asyncio.create_task(batcher.tag([upload(0)]))
        await asyncio.to_thread(recorder.passing.wait, PATIENCE)
        leaving = asyncio.create_task(batcher.tag([upload(n) for n in (1, 2)]))
        staying = asyncio.create_task(batcher.tag([upload(3)]))
        while batcher.queue.under_way < 4 or batcher.opening:
            await asyncio.sleep(0.001)
        leaving.cancel()
        while not leaving.done():
            await asyncio.sleep(0.001)
        assert batcher.queue.under_way == 2
        recorder.gate.set()
        await blocker
        return await staying

    assert run(work, recorder)[0].name == "3"
    assert recorder.batches == [["0"], ["3"]]


def test_a_picture_that_nobody_waits_for_keeps_its_turn_until_it_is_open():
    """However often its request is cancelled; what is wrong with it is nobody's trouble then."""
    recorder, unheard = Recorder(), []
    began, go = threading.Event(), threading.Event()

    def open_slowly(given):
        began.set()
        go.wait(PATIENCE)
        raise ImageError("bad")

    recorder.open = open_slowly

    async def work(batcher):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))
        leaving = asyncio.create_task(batcher._answer(upload(1), batcher.queue.reserve("")))
        await asyncio.to_thread(began.wait, PATIENCE)
        for _ in range(3):
            leaving.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not leaving.done()
        assert batcher.opening == 1
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert batcher.opening == 0
        del leaving
        gc.collect()

    run(work, recorder)
    assert unheard == []


def test_a_bad_picture_is_its_own_failure_and_a_broken_model_everyones():
    recorder = Recorder()

    async def work(batcher):
        good, bad = await batcher.tag([upload(1), Upload("b", b"bad")])
        assert (good.error, bad.error) == (None, "b: bad")
        recorder.forward = None
        batcher.forward = lambda pixels, names: 1 / 0
        with pytest.raises(ZeroDivisionError):
            await batcher.tag([upload(1)])
        assert batcher.queue.under_way == 0

    run(work, recorder)


def test_a_client_that_hangs_up_frees_its_place(run, monkeypatch):
    """The forward passes of the server wait."""
    sizes, forward, go = [], ServedModel.forward, threading.Event()

    def waiting(self, pixels, names):
        sizes.append(len(names))
        go.wait(PATIENCE)
        return forward(self, pixels, names)

    body, kind = form(*[(f"{n}.png", encoded(seed=n)) for n in range(16)])
    with running(run, max_batch=4, max_queue=16, max_files=16, decoders=0) as server:
        monkeypatch.setattr(ServedModel, "forward", waiting)
        with socket.create_connection(("127.0.0.1", server.port)) as line:
            line.sendall(upload_head(len(body), kind=kind) + body)
            wait_until(lambda: "labelwise_queue_length 16.0" in metrics(server))
            assert server.problem(server.upload(("a.png", encoded())), 429)
        wait_until(lambda: "labelwise_queue_length 16.0" not in metrics(server))
        go.set()
        wait_until(lambda: "labelwise_queue_length 0.0" in metrics(server))
        assert server.upload(("a.png", encoded()))[0] == 200
    assert sum(sizes) < 17


def test_a_request_has_its_place_once_its_body_is_there_and_until_it_goes(run, monkeypatch):
    """A hundred bodies that never end take no place: the picture of another is answered."""
    go, forward, content = threading.Event(), ServedModel.forward, encoded()

    def waiting(self, pixels, names):
        go.wait(PATIENCE)
        return forward(self, pixels, names)

    body, kind = form(("a.png", content))
    head, address = upload_head(len(body), kind=kind), ("127.0.0.1",)
    with running(run, max_queue=1, max_files=1, decoders=0) as server, ExitStack() as held:
        slow = [
            held.enter_context(socket.create_connection((*address, server.port)))
            for _ in range(100)
        ]
        for line in slow:
            line.sendall(head + body[:50])
        assert server.upload(("a.png", content))[0] == 200
        monkeypatch.setattr(ServedModel, "forward", waiting)
        slow[0].sendall(body[50:])
        wait_until(lambda: "labelwise_queue_length 1.0" in metrics(server))
        assert server.problem(server.upload(("a.png", content)), 429)
        go.set()
        assert status_of(slow[0]) == 200
        wait_until(lambda: "labelwise_queue_length 0.0" in metrics(server))
        slow[1].close()
        wait_until(lambda: 'route="other",status="408"} 1.0' in metrics(server))
        slow[2].sendall(body[50:])
        assert status_of(slow[2]) == 200
        assert 'route="/api/v1/predict",status="429"} 1.0' in metrics(server)
        assert 'status="500"' not in metrics(server)


def metrics(server):
    return server.send("GET", "/metrics")[2].decode()


def test_logits_that_are_no_numbers_are_the_models_fault(run, monkeypatch):
    real = Predictor.logits
    with running(run, decoders=0) as server:
        monkeypatch.setattr(Predictor, "logits", lambda *given: real(*given) * float("nan"))
        answer = server.upload(("a.png", encoded()))
        assert "not finite" in server.problem(answer, 503)
        assert "retry-after" in answer[1]


def test_a_fault_stays_with_its_picture_and_the_others_have_their_answers(run, monkeypatch):
    """The second of three has logits that are not numbers; the oracle are the two others alone."""
    model = ServedModel("tiny", RunFolder(run), "cpu")
    size = model.spec.transform.size
    pixels = np.random.default_rng(2).integers(0, 255, (3, size, size, 3), np.uint8)
    alone = model.forward([pixels[0], pixels[2]], ["a", "c"])
    real = Predictor.logits

    def second_is_nan(*given):
        return real(*given) * torch.tensor([[1.0], [math.nan], [1.0]])

    monkeypatch.setattr(Predictor, "logits", second_is_nan)
    found = model.forward(pixels, ["a", "b", "c"])
    assert [one.name for one in found] == ["a", "b", "c"]
    assert [one.fault is None for one in found] == [True, False, True]
    assert "not finite" in found[1].fault
    assert found[1].probs is None
    for one, expected in zip(found[::2], alone, strict=True):
        np.testing.assert_allclose(one.probs, expected.probs, atol=1e-6)


unix = pytest.mark.skipif(sys.platform == "win32", reason="has another kind of event loop")
NEWCOMERS = 3 * ACCEPTED_AT_ONCE + 5


async def no_app(scope, receive, send):
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"{scope['type']}.{step}.complete"})


@unix
def test_many_connections_come_at_once_and_are_taken_in_turns():
    """The system keeps them while the loop is held up; then no turn takes more than its share."""
    settings = ServeSettings(port=0)
    config = server_config(no_app, settings)
    config.load()
    made, per_turn, protocol = [], [0], config.http_protocol_class
    config.http_protocol_class = lambda **given: made.append(1) or protocol(**given)

    def connect_many():  # runs on the loop, which can take none of them meanwhile
        for _ in range(NEWCOMERS):
            stack.enter_context(socket.create_connection(listener.getsockname(), timeout=60))
        asyncio.get_running_loop().create_task(count())

    async def count():
        while per_turn[-1] < NEWCOMERS:
            per_turn.append(len(made))
            await asyncio.sleep(0)
        server.should_exit = True

    with listen(settings) as listener, ExitStack() as stack:
        server = Server(config, connect_many)
        server.run(sockets=[listener])
    assert len(made) == NEWCOMERS
    assert max(np.diff(per_turn)) <= ACCEPTED_AT_ONCE + 1  # from 3.12 on the loop takes one more
