"""Heads of requests that cost more to read than to send. No token is needed to send them.

The oracle is the processor time of the whole process, generous by a factor of ten over what is
needed here and far below what the attack cost before, and the status of the answer.
"""

import socket
import time
from contextlib import suppress

import h11
import pytest
from web_setup import TOKEN

from labelwise.server.security import COOKIE, cookie_value
from labelwise.server.serving import HEAD_BYTES, HEADERS_TAKEN, BoundedRequests


def sent_raw(server, content, half_closed=True):
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as line:
        parts = []
        with suppress(OSError):  # the server need not read on once it has refused
            line.sendall(content)
            if half_closed:
                line.shutdown(socket.SHUT_WR)  # not connected any more, where it has closed
        with suppress(ConnectionError):
            while part := line.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize(
    "cookie", ["\\" * 15_000, '"' + "\\" * 15_000, f'{COOKIE}="' + "\\0" * 7000]
)
def test_a_cookie_header_is_read_in_linear_time(protected, cookie):
    """SimpleCookie takes 0.8 s of processor time for each of these: 24 s for thirty."""
    began = time.process_time()
    for _ in range(30):
        assert protected.send("GET", "/api/v1/model", headers={"Cookie": cookie})[0] == 401
    assert time.process_time() - began < 6


def test_64_000_backslashes_are_too_much(protected):
    answer = protected.send("GET", "/api/v1/model", headers={"Cookie": "\\" * 64_000})
    assert "16,384 bytes" in protected.problem(answer, 431)
    assert answer[1]["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "cookie", ["{}", "a=1; {}", "{}; b", "\\\\;;=; {} ;=", "{}=x; {}", 'c="{}"; {}']
)
def test_our_cookie_is_found_among_others(protected, cookie):
    own = f"{COOKIE}={cookie_value(TOKEN)}"
    headers = {"Cookie": cookie.replace("{}", own)}
    assert protected.send("GET", "/api/v1/model", headers=headers)[0] == 200
    headers = {"Cookie": cookie.replace("{}", own[:-1])}
    assert protected.send("GET", "/api/v1/model", headers=headers)[0] == 401


def test_headers_are_counted_also_where_they_come_at_once(protected):
    head = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
    few = head + b"a: b\r\n" * (HEADERS_TAKEN - 1) + b"\r\n"
    assert sent_raw(protected, few).startswith(b"HTTP/1.1 200")
    for many in (b"a: b\r\n" * HEADERS_TAKEN, b"a:\n" * 1000, b"a: " + b"b" * HEAD_BYTES + b"\r\n"):
        assert sent_raw(protected, head + many + b"\r\n").startswith(b"HTTP/1.1 431")
        assert sent_raw(protected, few + head + many + b"\r\n").count(b"HTTP/1.1 431") == 1
        assert sent_raw(protected, head + many * 20)[:12] in (b"HTTP/1.1 431", b"")


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\r\n\n", b"\n\r\n"])
@pytest.mark.parametrize("at_a_time", [1, 7, 1 << 20])
def test_heads_within_the_limits_are_what_h11_makes_of_them(end, at_a_time):
    """The oracle is h11 itself without our limits."""
    content = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nB: c" + end + b"xyz"
    ours, theirs = BoundedRequests(), h11.Connection(h11.SERVER)
    events = {}
    for one in (ours, theirs):
        events[one] = []
        for start in range(0, len(content), at_a_time):
            one.receive_data(content[start : start + at_a_time])
            while (event := one.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
                events[one].append(event)
    assert events[ours] == events[theirs]
    assert events[ours][0].target == b"/a"


def test_a_body_in_tiny_chunks_is_refused(protected):
    head = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    whole = sent_raw(protected, head + b"1\r\n \r\n" * 200 + b"0\r\n\r\n", half_closed=False)
    assert whole.startswith((b"HTTP/1.1 415", b"HTTP/1.1 422"))
    assert b"HTTP/1.1 400" in sent_raw(protected, head + b"1\r\n \r\n" * 5000)[:20]


def test_what_is_not_http_gets_one_sentence(protected):
    for content in (b"\r\n" * 200 + b"\x16\x03\x01", b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n"):
        answer = sent_raw(protected, content)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"application/problem+json" in answer
        assert b"content-security-policy" in answer.lower()


def test_a_message_repeats_no_more_than_it_must_of_what_was_sent(server):
    """It is cut in its middle: what was wrong stands at its beginning, the way out at its end."""
    answer = server.send("GET", "/api/v1/review?label=" + "a" * 5000)
    words = server.problem(answer, 422)
    assert len(words) <= 2000
    assert words.startswith("unknown label 'aaa")
    assert words.endswith("'row'")
