"""What the pages of other sites make a browser send, and requests of doubtful length.

The oracle is what the page must not get: an answer that costs work, or one that it may read.
"""

import socket

import pytest
from web_setup import encoded, running

from labelwise.errors import SettingsError
from labelwise.server import ServeSettings

WORK = ["/api/v1/search?q=dog", "/api/v1/labels", "/metrics", "/api/v1/review", "/v2", "/docs"]
FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
]
FRIEND = "https://photos.example"


@pytest.mark.parametrize("headers", FOREIGN)
def test_pages_of_other_sites_get_nothing_that_costs_work(server, headers):
    photo = server.get("/api/v1/search?q=dog&top=1")["hits"][0]["id"]
    for path in [*WORK, f"/api/v1/photos/{photo}/thumbnail", f"/api/v1/photos/{photo}/similar"]:
        for method in ("GET", "HEAD"):
            assert server.send(method, path, headers=headers)[0] == 403, path
    assert server.send("OPTIONS", "/api/v1/search?q=dog", headers=headers)[0] == 403


@pytest.mark.parametrize("headers", FOREIGN)
def test_a_link_from_another_site_leads_to_the_page(server, headers):
    for path in ("/", "/static/style.css", "/health/live"):
        assert server.send("GET", path, headers=headers)[0] == 200


def test_the_page_itself_and_programs_are_answered(server):
    own = {"Sec-Fetch-Site": "same-origin", "Origin": server.address}
    for headers in (own, {"Sec-Fetch-Site": "none"}, {}):
        assert server.send("GET", "/api/v1/search?q=dog", headers=headers)[0] == 200


def test_only_the_allowed_origin_may_ask_and_read(run):
    picture = ("a.png", encoded())
    cross = {"Sec-Fetch-Site": "cross-site"}
    with running(run, decoders=0, origins=(FRIEND,)) as server:
        status, headers, _ = server.upload(picture, Origin=FRIEND, **cross)
        assert (status, headers["access-control-allow-origin"]) == (200, FRIEND)
        assert headers["vary"] == "origin"
        asking = {"Origin": FRIEND, "Access-Control-Request-Method": "POST", **cross}
        status, headers, _ = server.send("OPTIONS", "/api/v1/predict", headers=asking)
        assert (status, headers["access-control-allow-origin"]) == (204, FRIEND)
        assert "authorization" in headers["access-control-allow-headers"]
        for other in (
            f"{FRIEND}.evil",
            f"{FRIEND}:444",
            "http://photos.example",
            "null",
            FRIEND[:-1],
        ):
            for method, path in (("POST", "/api/v1/predict"), ("OPTIONS", "/api/v1/predict")):
                status, headers, _ = server.send(method, path, headers=asking | {"Origin": other})
                assert status == 403
                assert "access-control-allow-origin" not in headers
        assert server.send("GET", "/api/v1/model", headers=cross)[0] == 403  # says no origin
        assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize(
    "origin", ["*", "null", "photos.example", f"{FRIEND}/", "https://A.example"]
)
def test_an_origin_is_given_exactly(origin):
    with pytest.raises(SettingsError, match="an origin must be"):
        ServeSettings(origins=(origin,))


@pytest.mark.parametrize("kind", ["chunked", "identity", "gzip, chunked"])
def test_a_length_given_in_two_ways_is_refused(server, kind):
    """Two servers in a row may read such a request as two different ones."""
    head = "POST /api/v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    head += f"Content-Length: 4\r\nTransfer-Encoding: {kind}\r\n\r\n0\r\n\r\n"
    smuggled = b"GET /api/v1/model HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as line:
        line.sendall(head.encode() + smuggled)
        answered = b""
        while part := line.recv(4096):
            answered += part
    assert answered.startswith((b"HTTP/1.1 400", b"HTTP/1.1 501"))
    assert answered.count(b"HTTP/1.1 ") == 1  # what came after it was not taken for a request
