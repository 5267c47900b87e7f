"""Sockets that are opened and held: others must still be answered.

The oracle is the answer that others get meanwhile, and the end of the attacker's own connection.
"""

import select
import socket
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException

from patience import PATIENCE, wait_until
from web_setup import encoded, running, status_of, upload_head

HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
UPLOAD, ASKING = upload_head(1000) + b"x", upload_head(1000, "Expect: 100-continue")
PATIENT = {"idle_seconds": 600, "request_seconds": 600}  # no time limit helps the server


@contextmanager
def lines(port, count, sent=b""):
    """Hold connections on which something was sent; how many end up open is the server's affair."""
    with ExitStack() as held:
        opened = []
        for _ in range(count):
            line = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            line.sendall(sent)
            opened.append(line)
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
        with socket.socket() as other:
            other.settimeout(120)
            other.bind(("127.0.0.2", 0))
            other.connect(("127.0.0.1", server.port))
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
        sent = 0
        ended = False
        while not ended and sent < 3000:
            try:
                line.sendall(b"X" if sent else b"GET /")
                sent += 1
                ended = line.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert ended  # a limit that begins anew with every byte would never come


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
