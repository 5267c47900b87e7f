"""Requests that two servers in a row could read differently, or that lead past a check.

The oracle is how many answers come and which: without a token nothing but the page's own files and
health may be answered, however the path, the host or the length is written.
"""

import socket
from contextlib import suppress

import pytest
from web_setup import TOKEN

SECRET = "/api/v1/model"


def answers(server, content):
    """Send bytes; return the status of each answer until the server ends the connection, and all.

    The connection is not half-closed: a server may take that for the end, and not answer.
    """
    received = b""
    address = ("127.0.0.1", server.port)
    with socket.create_connection(address, timeout=120) as line, suppress(ConnectionError):
        line.sendall(content)
        while part := line.recv(1 << 16):
            received += part
    heads = received.split(b"HTTP/1.1 ")[1:]
    return [int(head[:3]) for head in heads], received


def request(target, *lines, method="GET", host="localhost", last=True):
    """Return a request, after which the server ends the connection if it is the last one."""
    end = ["Connection: close"] if last else []
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, *end, "", ""]
    return "\r\n".join(head).encode("utf-8")


@pytest.mark.parametrize(
    "target",
    [
        f"/static/..{SECRET}",
        f"/static/../..{SECRET}",
        "/static/..%2fapi%2fv1%2fmodel",
        "/static/%2e%2e/api/v1/model",
        f"/health/..{SECRET}",
        f"/health/live/../..{SECRET}",
        f"/{SECRET}",
        f"{SECRET}/",
        "/api/v1/model%00",
        "/api/v1/model;/static/",
        "/api/v1/model?/static/",
        "/api/v1/model#/static/",
        "/API/V1/MODEL",
        "/%61pi/v1/model",
        f"http://localhost{SECRET}",
        f"http://evil.example/static{SECRET}",
        "*",
        "/static/\\..\\..\\api",
        "/api/v1/session/../model",
        "/v2/health/../models/tiny",
        "/metrics",
        "/openapi.json",
        "/docs",
    ],
)
def test_no_way_of_writing_a_path_leads_past_the_token(protected, target):
    statuses, received = answers(protected, request(target))
    assert len(statuses) == 1
    assert statuses[0] in (400, 401, 404, 405), received[:300]
    assert b"labels" not in received.split(b"\r\n\r\n", 1)[-1]
    assert answers(protected, request(SECRET, f"Authorization: Bearer {TOKEN}"))[0] == [200]


@pytest.mark.parametrize(
    "host",
    [
        "localhost@evil.example",
        "evil.example#localhost",
        "localhost evil.example",
        "localhost,evil.example",
        "localhost.evil.example",
        "evil.example:80:localhost",
        "lоcalhost",  # with a Cyrillic o
        "localhost\u3002evil",
        "xn--lcalhost-96g",
        "127.1",
        "2130706433",
        "0x7f000001",
        "[::ffff:7f00:1%25lo]",
        "localhost:99999999",
        "",
        "localhost/",
    ],
)
def test_no_way_of_writing_a_host_leads_here(protected, host):
    """A name that another site can own, made to lead to this machine, is not answered."""
    statuses, received = answers(protected, request("/health/live", host=host))
    assert statuses == [400], received[:200]


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5, 6",),
        ("Content-Length: +5",),
        ("Content-Length: 0x5",),
        ("Content-Length: -1",),
        ("Content-Length: 5_0",),
        ("Content-Length:",),
        ("Content-Length : 5",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding: chunked, chunked",),
        ("Transfer-Encoding: gzip",),
        ("Transfer-Encoding : chunked",),
        ("Host: evil.example",),
        (" folded: yes",),
        ("a\x00b: c",),
        ("a b: c",),
        ("no colon",),
    ],
)
def test_a_doubtful_head_is_one_request_and_refused(protected, lines):
    smuggled = request("/health/live")
    statuses, received = answers(
        protected,
        request("/api/v1/session", *lines, method="POST", last=False) + b"0\r\n\r\n" + smuggled,
    )
    assert statuses
    assert set(statuses) <= {400, 501}, received[:400]  # and the request behind it is not answered


@pytest.mark.parametrize(
    "body",
    [
        b"5;ext=1\r\n{}   \r\n0\r\n\r\n",
        b"5\r\n{}   \r\n0\r\nHost: evil\r\n\r\n",
        b"0005\r\n{}   \r\n0\r\n\r\n",
    ],
)
def test_odd_chunks_are_one_body(protected, body):
    head = request(
        "/api/v1/session", "Content-Type: application/json", "Transfer-Encoding: chunked",
        method="POST", last=False,
    )  # fmt: skip
    statuses, received = answers(protected, head + body + request("/health/live"))
    assert statuses[0] in (401, 422), received[:200]
    assert statuses[1:] == [200]


@pytest.mark.parametrize(
    "body",
    [b"5\r\n{}   0\r\n\r\n", b"-5\r\n{}", b"5 \r\nx", b"0x5\r\n{}   "],
)
def test_broken_chunks_end_the_connection(protected, body):
    head = request(
        "/api/v1/session", "Content-Type: application/json", "Transfer-Encoding: chunked",
        method="POST", last=False,
    )  # fmt: skip
    statuses, received = answers(protected, head + body + request("/health/live"))
    assert 200 not in statuses, received[:400]
    assert all(status < 500 for status in statuses)


@pytest.mark.parametrize(
    "lines",
    [
        ("Upgrade: websocket", "Connection: Upgrade, close", "Sec-WebSocket-Key: AAAA",
         "Sec-WebSocket-Version: 13"),
        ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings, close", "HTTP2-Settings: AAMAAABk"),
    ],
)  # fmt: skip
def test_no_other_protocol_is_spoken(protected, lines):
    for target in ("/", SECRET, "/ws"):
        statuses, received = answers(protected, request(target, *lines, last=False))
        assert 101 not in statuses, received[:200]
        assert len(statuses) == 1
        assert statuses[0] < 500
    assert set(answers(protected, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")[0]) == {400}


def test_requests_in_a_row_are_answered_in_their_order(protected):
    targets = ["/health/live", SECRET, "/nothing", "/static/style.css"] * 5
    row = b"".join(request(target, last=False) for target in targets)
    statuses, _ = answers(protected, row + request("/health/live"))
    assert statuses == [200, 401, 401, 200] * 5 + [200]


def test_thousands_of_parameters_are_one_answer(protected):
    token = f"Authorization: Bearer {TOKEN}"
    target = "/api/v1/search?" + "q=a&" * 3500
    (status,), _ = answers(protected, request(target, token))
    assert status in (404, 409, 422, 503)
    assert answers(protected, request("/api/v1/complete?" + "&" * 15_000, token))[0][0] < 500
