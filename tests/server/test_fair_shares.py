"""One client that sends or holds much, beside one that sends little.

Oracles: fair queueing as a slow loop over virtual time, Pillow, the answers that others get, the
end of the attacker's own connection, the bytes that are held, and those of the system.
"""

import asyncio
import io
import random
import select
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from types import SimpleNamespace

import pytest
from patience import PATIENCE, wait_until
from PIL import Image
from web_setup import encoded, form, running, status_of, upload_head

from labelwise.pictures.decode import MAX_PIXELS
from labelwise.pictures.worker_starter import Decoders
from labelwise.server.batching import USUAL_PIXELS, FairTurns
from labelwise.server.bodies import Bodies, Budget, claimed_pixels


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


def test_a_budget_is_never_passed_and_everyone_gets_some():
    draw, held = random.Random(3), []

    async def main():
        budget = Budget(100)

        async def one(count):
            await budget.take(count)
            held.append(budget.used)
            await asyncio.sleep(0)
            budget.give(count)

        counts = draw.choices([1, 30, 60, 100, 150], k=60)
        tasks = [asyncio.create_task(one(count)) for count in counts]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks[10:20]:
            task.cancel()
        await asyncio.wait(tasks)
        assert budget.used == 0

    asyncio.run(main())
    assert max(held) <= 150
    assert len(held) >= 50


def test_half_sent_uploads_hold_half_of_the_memory_and_no_whole_one_waits_for_them(run):
    """Twenty clients send 3 of 4 parts each and stop: half of the memory, the rest on disk."""
    size, sent = 400_000, 300_000
    settings = {"body_memory": 1_000_000, "idle_seconds": 3600, "request_seconds": 3600}
    with running(run, decoders=0, **settings) as server:
        bodies = server.app.bodies
        with ExitStack() as held:
            lines = [held.enter_context(line_of(server)) for _ in range(20)]
            for line in lines:
                line.sendall(upload_head(size) + bytes(sent))
            wait_until(lambda: bodies.arriving.used + bodies.disk.used == 20 * sent)
            assert bodies.arriving.used <= 500_000
            content = encoded(size=(700, 350))
            assert len(content) > 500_000
            assert server.upload(("a.png", content))[0] == 200  # no half-sent one gives up for it
            assert bodies.arriving.used + bodies.disk.used == 20 * sent
            lines[-1].sendall(bytes(size - sent))
            assert b" 422 " in lines[-1].recv(100)
        wait_until(lambda: not (bodies.arriving.used or bodies.whole.used or bodies.disk.used))


HALF_SENT = """
import asyncio, contextlib, resource
from pathlib import Path
from labelwise.server.bodies import Bodies
from labelwise.server.security import RefusedError
from labelwise.base.allocator import keep_freed_memory

keep_freed_memory()  # as the commands do
SCOPE = {"type": "http", "method": "POST", "path": "/api/v1/predict"}
bodies, kept = Bodies(512 << 20, 0), []

def held():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

async def receive():
    if bodies.arriving.used < 160 << 20:
        kept.append(bytearray(1000))  # what a server keeps lies between the pieces
        return {"type": "http.request", "body": bytes(60_000), "more_body": True}
    print(held() - before)
    return {"type": "http.disconnect"}

async def main():
    with contextlib.suppress(RefusedError):
        async with bodies.taken(SCOPE, receive):
            pass

before = held()
asyncio.run(main())
print(held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_half_sent_uploads_are_given_back_to_the_system(tmp_path, warm_commands):
    """160 MiB come, and their client goes: what the process holds is what it held before."""
    script = tmp_path / "half_sent.py"
    script.write_text(HALF_SENT)
    done = warm_commands.run([], tmp_path, module=script)
    assert done.returncode == 0, done.stderr
    during, after = map(int, done.stdout.split())
    assert during > 150 << 20
    assert after < 40 << 20


def test_one_address_fills_neither_the_disk_nor_the_queue(run):
    with running(run, decoders=0, body_memory=0, body_disk=100_000) as server:
        answer = server.upload(("a.png", encoded(size=(300, 300))))
        assert "as many bytes" in server.problem(answer, 429)
        assert server.upload(("a.png", encoded()))[0] == 200
    with running(run, decoders=0, max_queue=8, max_files=1) as server, ExitStack() as held:
        for number in range(6):
            other = "127.0.0.2" if number == 5 else "127.0.0.1"
            line = held.enter_context(line_of(server, other))
            line.sendall(upload_head(1000, "Expect: 100-continue"))
            assert (b" 429 " if number == 4 else b"100 Continue") in line.recv(100)


@pytest.mark.parametrize("memory", [0, 7, 50, 10_000])
def test_the_application_sees_the_body_that_was_sent(memory):
    """In memory or through the disk, in whatever pieces it came; the oracle is what was sent."""
    draw = random.Random(5)
    scope = {"type": "http", "method": "POST", "path": "/api/v1/predict"}

    async def main():
        bodies = Bodies(memory, 1 << 20)
        for _ in range(30):
            parts = [draw.randbytes(draw.choice([0, 1, 20])) for _ in range(draw.randrange(1, 8))]
            coming = [{"type": "http.disconnect"}]
            for part in reversed(parts):
                more = len(coming) > 1
                coming.append({"type": "http.request", "body": part, "more_body": more})

            async def receive(coming=coming):
                return coming.pop()

            async with bodies.taken(scope, receive) as body:
                seen = b""
                while (message := await body())["type"] == "http.request":
                    seen += message["body"]
                assert seen == b"".join(parts)
        return bodies.arriving.used + bodies.whole.used, bodies.disk.used

    assert asyncio.run(main()) == (0, 0)


HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
UPLOAD, ASKING = upload_head(1000) + b"x", upload_head(1000, "Expect: 100-continue")
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


def test_511_half_open_connections_keep_nobody_out(run):
    with running(run, decoders=0, **PATIENT) as server:
        for sent in (b"", HEAD, b"GET / HT"):
            with lines(server.port, 511, sent) as held:
                for path in ("/health/live", "/health/ready", "/v2/health/live", "/api/v1/model"):
                    assert server.send("GET", path)[0] == 200
                assert server.upload(("a.png", encoded()))[0] == 200
                assert all(is_ended(line) for line in held[:200])  # the oldest made room


def test_511_connections_that_begin_a_second_request_keep_nobody_out(run):
    with (
        running(run, decoders=0, **PATIENT) as server,
        lines(server.port, 200, HEAD + b"\r\n") as early,
    ):
        for line in early:
            assert status_of(line) == 200
            line.sendall(HEAD)  # and never its end
        with lines(server.port, 311, HEAD):
            assert server.send("GET", "/health/live")[0] == 200
            assert server.upload(("a.png", encoded()))[0] == 200


def test_health_has_a_reserve_where_every_connection_has_a_request(run):
    options = {"connections": 20, "client_connections": 20, "max_queue": 64, **PATIENT}
    with running(run, decoders=0, **options) as server, lines(server.port, 20, ASKING) as held:
        for line in held:
            assert b"100 Continue" in line.recv(100)  # each has a request in work now
        for path in ("/health/live", "/health/ready"):
            assert server.send("GET", path)[0] == 200
        refused = server.send("GET", "/api/v1/model")
        assert "as many connections" in server.problem(refused, 503)
        assert refused[1]["retry-after"] == "1"
        with lines(server.port, 100, HEAD):  # the reserve is full too, and the oldest makes room
            assert server.send("GET", "/api/v1/model")[0] == 503  # but not among the others
            assert server.send("GET", "/health/live")[0] == 200
    with running(run, decoders=0, **options) as server:
        with lines(server.port, 20, UPLOAD):
            pass
        assert server.send("GET", "/api/v1/model")[0] == 200


def test_who_holds_most_makes_room_for_others(run):
    """All places are taken by one address; one more client of another address comes in."""
    options = {"connections": 20, "client_connections": 20, **PATIENT}
    with running(run, decoders=0, **options) as server, lines(server.port, 20) as held:
        with line_of(server, "127.0.0.2") as other:
            other.sendall(HEAD.replace(b"/health/live", b"/api/v1/model") + b"\r\n")
            assert status_of(other) == 200
        assert is_ended(held[0])


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
            wait_until(lambda: server.connections.open == 0)
            received = 0
            with suppress(ConnectionError):
                while part := line.recv(1 << 16):
                    received += len(part)
            assert received < size
