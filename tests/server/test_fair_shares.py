"""One client that sends or holds much, beside one that sends little.

Oracles: fair queueing as a slow loop over virtual time, Pillow, the answers that others get, the
end of the attacker's own connection, the bytes that are held, and those of the system.
"""

import asyncio
import io
import random
import select
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from itertools import pairwise
from tempfile import SpooledTemporaryFile
from types import SimpleNamespace

import pytest
from patience import PATIENCE, wait_until
from PIL import Image
from web_setup import encoded, form, running, status_of, upload_head

from labelwise.pictures.decode import MAX_PIXELS
from labelwise.pictures.worker_starter import Decoders
from labelwise.server import app as application
from labelwise.server.app import SPOOLED, taken
from labelwise.server.batching import USUAL_PIXELS, FairTurns
from labelwise.server.bodies import PIECE, claimed_pixels
from labelwise.server.serving import raise_file_limit


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP", "JPEG"])
@pytest.mark.parametrize("size", [(1, 1), (37, 91), (640, 3)])
def test_pixels_are_claimed_as_pillow_reads_them(kind, size):
    for options in [{}, *([{"lossless": True}, {"exif": b"Exif\0\0x"}] if kind == "WEBP" else [])]:
        content = encoded(kind, size, **options)
        assert Image.open(io.BytesIO(content)).size == size
        assert claimed_pixels(content) == size[0] * size[1]


def test_what_says_no_size_counts_as_the_largest():
    whole = encoded("JPEG")
    for content in (b"", b"x", b"II*\0", whole[:3], whole[:30], b"\xff\xd8" + b"\xff" * 9999):
        assert claimed_pixels(content) == MAX_PIXELS
    assert claimed_pixels(encoded()[:16] + b"\xff" * 8) == MAX_PIXELS


def asking(client):
    """Return a request of an address."""
    return SimpleNamespace(client=client, end=0)


def served(jobs, places, pixels):
    """Return the order in which jobs (client, pixels) are served; each ends when the next may."""

    async def main():
        turns, order, running = FairTurns(places, pixels, seconds=lambda: 0.0), [], []
        most = [0, 0]

        async def one(number, client, cost):
            async with turns.turn(asking(client), cost):
                order.append(number)
                most[0] = max(most[0], turns.under_way)
                most[1] = max(most[1], turns.pixels_under_way)
                over = asyncio.get_running_loop().create_future()
                running.append(over)
                await over

        tasks = [asyncio.create_task(one(n, *job)) for n, job in enumerate(jobs)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            if running:
                running.pop(0).set_result(None)
        assert (turns.under_way, turns.pixels_under_way) == (0, 0)
        return order, most

    return asyncio.run(main())


def slowly(jobs):
    """Fair queueing of jobs that are all there at the start, one at a time: by virtual start.

    The first is under way when the others come; an address has its smallest served first.
    """
    ends, starts = {}, []
    for number, (client, cost) in sorted(enumerate(jobs), key=lambda one: (one[0] > 0, one[1][1])):
        start = ends.get(client, 0)
        ends[client] = start + cost
        starts.append((start, client, number))
    return [number for *_, number in sorted(starts)]


def test_turns_are_those_of_fair_queueing():
    draw = random.Random(0)
    for _ in range(50):
        jobs = [(draw.choice("abc"), draw.choice([1, 5, 40])) for _ in range(25)]
        order, most = served(jobs, 1, 100)  # the first came when nobody else was there
        assert order == [0, *(number for number in slowly(jobs) if number != 0)]
        assert most == [1, max(cost for _, cost in jobs)]


def order_of(scenario, seconds=lambda: 0.0):
    """Return the order in which ``scenario(one)`` is served, one at a time."""
    order, turns = [], FairTurns(1, 100, seconds=seconds)

    async def one(request, name, pixels, work=lambda: None):
        async with turns.turn(request, pixels):
            order.append(name)
            work()
            await asyncio.sleep(0)

    asyncio.run(scenario(one, order))
    return order


def test_requests_of_one_address_share_its_turns():
    """At an attacker's address it waited for all of them: 79 s in the median."""

    async def scenario(one, _):
        large, other, few = asking("a"), asking("a"), asking("a")
        large_ones = [one(large, f"large {n}", 81) for n in range(4)]
        others = [one(other, f"other {n}", 30) for n in range(3)]
        await asyncio.gather(*large_ones, *others, one(few, "single", 1))

    order = order_of(scenario)
    assert order[:2] == ["large 0", "single"]  # the one that was under way, and then
    # By the ends of requests: 30, 60, 90 of the other one, 162, 243, 324 of the large one.
    assert order[2:] == [*(f"other {n}" for n in range(3)), *(f"large {n}" for n in (1, 2, 3))]

    # Of an endless stream of small ones, as many come before it as it has pixels.
    async def scenario(one, order):
        first = asyncio.create_task(one(asking("a"), "first", 1))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(one(asking("a"), "large", 20))]
        stream = asking("a")
        while "large" not in order and len(order) < 1000:
            waiting.append(asyncio.create_task(one(stream, "small", 1)))
            await asyncio.sleep(0)
        await asyncio.gather(first, *waiting)

    assert order_of(scenario).index("large") < 30


def test_who_sends_slow_pictures_pays_by_the_time():
    """Ten small files that hold a decoder for a second each: ten of another client come between."""
    waited = []

    async def scenario(one, _):
        slow = [one(asking("a"), "slow", 5, lambda: waited.append(1.0)) for _ in range(10)]
        quick = [one(asking("b"), "quick", 5, lambda: waited.append(0.001)) for _ in range(10)]
        await asyncio.gather(*slow, *quick)

    order = order_of(scenario, lambda: sum(waited))
    assert order == ["slow", *["quick"] * 10, *["slow"] * 9]


def test_up_to_five_decoders_never_open_two_of_the_largest_side_by_side():
    """And who sends little does not wait for who sends much."""
    for places in range(1, 6):
        pixels = MAX_PIXELS + places * USUAL_PIXELS  # as in the batcher
        _, most = served([("a", MAX_PIXELS), ("b", MAX_PIXELS)] * 4, places, pixels)
        assert most[1] == MAX_PIXELS
    order, most = served([("many", 81)] * 16 + [("few", 1)] * 3, 2, 100)
    assert set(order[:4]) >= {16, 17}  # beside the first large one
    assert order.index(18) < 6
    assert most[1] <= 100


def test_who_goes_leaves_its_turn_to_others():
    async def main():
        turns = FairTurns(1, 100)
        async with turns.turn(asking("a"), 50):
            waiting = [asyncio.create_task(turns.turn(asking(c), 1).__aenter__()) for c in "bcd"]
            await asyncio.sleep(0)
            waiting[0].cancel()
            waiting[1].cancel()
            await asyncio.wait(waiting[:2])
        await waiting[2]
        return turns.under_way

    assert asyncio.run(main()) == 1


@contextmanager
def line_of(server, address="127.0.0.1"):
    """Hold a connection from an address of this machine."""
    with socket.socket() as line:
        line.settimeout(300)
        line.bind((address, 0))
        line.connect(("127.0.0.1", server.port))
        yield line


def test_a_client_of_another_address_is_served_before_the_rest_of_a_large_request(run, monkeypatch):
    """Six large pictures of one client; the picture of another is the second that is opened."""
    opened, gate, real = [], threading.Event(), Decoders.pixels

    def noted(self, blob, name, transform):
        opened.append(name)
        gate.wait(300)
        return real(self, blob, name, transform)

    monkeypatch.setattr(Decoders, "pixels", noted)
    buffer = io.BytesIO()
    Image.new("L", (1500, 1500)).save(buffer, "WEBP", lossless=True, method=0)
    body, kind = form(*[(f"large {n}", buffer.getvalue()) for n in range(6)])
    with running(run, decoders=0) as server:
        sent = ("POST", "/api/v1/predict", body, {"Content-Type": kind})
        asking = threading.Thread(target=server.send, args=sent)
        asking.start()
        wait_until(lambda: len(opened) == 1)
        with line_of(server, "127.0.0.2") as other:
            small, kind = form(("small", encoded()))
            other.sendall(upload_head(len(small), kind=kind) + small)
            wait_until(lambda: server.app.service.queue.opening == 7)
            gate.set()
            assert other.recv(12) == b"HTTP/1.1 200"
        asking.join()
    assert opened[1] == "small"
    assert len(opened) == 7


def test_one_address_does_not_fill_the_queue(run, monkeypatch):
    """One address has half of the places: its fifth picture is refused, that of another taken."""
    go, real = threading.Event(), Decoders.pixels

    def held(self, *arguments):
        go.wait(PATIENCE)
        return real(self, *arguments)

    monkeypatch.setattr(Decoders, "pixels", held)
    picture = encoded()
    sent = upload_head(len(picture)) + picture
    with running(run, decoders=0, max_queue=8, max_files=1) as server, ExitStack() as lines:
        under_way = server.app.service.queue
        for number in range(6):
            other = "127.0.0.2" if number == 5 else "127.0.0.1"
            line = lines.enter_context(line_of(server, other))
            line.sendall(sent)
            if number == 4:
                assert status_of(line) == 429
            else:
                places = min(number + 1, 5)
                wait_until(lambda: under_way.under_way == places)  # noqa: B023 - at once
        go.set()


@pytest.mark.parametrize("size", [0, 1, PIECE, SPOOLED, 3 * SPOOLED + 7])
def test_the_application_sees_the_body_that_was_sent(size):
    """In memory or through the disk, in whatever pieces it came; the oracle is what was sent."""
    sent, draw = random.Random(size).randbytes(size), random.Random(5)
    edges = sorted({0, size, *(draw.randrange(size + 1) for _ in range(5))})
    parts = [sent[low:high] for low, high in pairwise(edges)] or [b""]
    coming = [{"type": "http.disconnect"}]
    for part in reversed(parts):
        coming.append({"type": "http.request", "body": part, "more_body": len(coming) > 1})

    async def receive():
        return coming.pop()

    async def main():
        with SpooledTemporaryFile(SPOOLED) as file:
            body = await taken({"path": "/api/v1/predict"}, receive, file, PATIENCE)
            assert len(coming) == 1
            pieces = []
            while (message := await body())["type"] == "http.request":
                pieces.append(message["body"])
            assert max(map(len, pieces)) <= PIECE
            return b"".join(pieces)

    assert asyncio.run(main()) == sent


class FullDisk(io.BytesIO):
    """A file on a disk that has no room."""

    def write(self, _):
        raise OSError(28, "No space left on device")


def test_a_body_for_which_the_disk_has_no_room_is_refused(run, monkeypatch):
    with running(run, decoders=0) as server:
        monkeypatch.setattr(application, "SpooledTemporaryFile", lambda _: FullDisk())
        answer = server.upload(("a.png", encoded()))
        assert "no room" in server.problem(answer, 503)
        assert answer[1]["retry-after"] == "5"
        monkeypatch.undo()
        assert server.upload(("a.png", encoded()))[0] == 200


HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
UPLOAD = upload_head(1000) + b"x"
PATIENT = {"idle_seconds": 600, "request_seconds": 600}  # no time limit helps the server


@contextmanager
def lines(port, count, sent=b""):
    """Hold connections on which something was sent; how many end up open is the server's affair."""
    with ExitStack() as held:
        address = ("127.0.0.1", port)
        opened = [held.enter_context(socket.create_connection(address, 120)) for _ in range(count)]
        for line in opened:
            line.sendall(sent)
        yield opened


@contextmanager
def answered_line(port):
    """Hold a connection whose first request was answered.

    On a busy machine the limit of the test may end a connection before anything is sent on it.
    """
    with ExitStack() as held:
        answered = []

        def is_answered():
            (line,) = held.enter_context(lines(port, 1))
            with suppress(ConnectionError, HTTPException):
                line.sendall(HEAD + b"\r\n")
                assert status_of(line) == 200
                answered.append(line)
            return bool(answered)

        wait_until(is_answered)
        yield answered[0]


def is_ended(line):
    with suppress(ConnectionError):
        return line.recv(1) == b""
    return True


def test_a_thousand_half_open_connections_keep_nobody_out(run):
    raise_file_limit()  # the client's end of each connection is a file of this process too
    with running(run, decoders=0, **PATIENT) as server:
        for sent in (b"", HEAD, b"GET / HT"):
            with lines(server.port, 1000, sent):
                for path in ("/health/live", "/health/ready", "/api/v1/model"):
                    assert server.send("GET", path)[0] == 200
                assert server.upload(("a.png", encoded()))[0] == 200


UNENDED = " HTTP/1.1\r\nHost: {}\r\nContent-Length: 90\r\n\r\nx"
SECOND = (
    *(b"", b"G", HEAD, UPLOAD),
    f"POST /nowhere{UNENDED.format('localhost')}".encode(),
    f"POST /api/v1/session{UNENDED.format('evil')}".encode(),
)


def test_what_is_not_sent_whole_is_given_up_also_after_the_first_request(run):
    limits = {"idle_seconds": 0.4, "request_seconds": 1.0}
    with running(run, decoders=0, **limits) as server:
        for second in SECOND:
            with answered_line(server.port) as line, suppress(ConnectionError):
                line.sendall(second)
                while line.recv(4096):  # a 408 or 400 for some; then the end, or the test's limit
                    pass


def test_a_byte_now_and_then_does_not_keep_a_connection(run):
    with running(run, decoders=0, idle_seconds=1.0) as server, answered_line(server.port) as line:
        line.settimeout(0.2)
        for sent in (b"GET /", *[b"X"] * 3000):
            with suppress(ConnectionError, TimeoutError):
                line.sendall(sent)
            with suppress(TimeoutError):
                if is_ended(line):
                    return
        pytest.fail("a limit that begins anew with every byte never comes")


def test_who_does_not_take_the_answer_is_let_go(run):
    """Ten million bytes that nobody reads: the server drops them with the connection."""
    size = 10 << 20
    asked = HEAD.replace(b"/health/live", b"/api/v1/model") + b"\r\n"
    with running(run, decoders=0, idle_seconds=0.5, request_seconds=0.5) as server:
        server.app.service.model().name = "n" * size
        with lines(server.port, 1, asked) as (line,):
            assert select.select([line], [], [], PATIENCE)[0]  # the beginning of an answer
            wait_until(lambda: not server.connections)
            received = 0
            with suppress(ConnectionError):
                while part := line.recv(1 << 16):
                    received += len(part)
            assert received < size
