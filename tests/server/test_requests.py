"""Requests that lead past a check, cost more than they say, or come from other sites and proxies.

Oracles: how many answers come and which (without a token only of the page's own files and health),
processor time, generous by a factor of ten, the access log.
"""

import json
import socket
import time
from contextlib import suppress

import pytest
from web_setup import TOKEN, encoded, running

from labelwise.errors import SettingsError
from labelwise.server import ServeSettings
from labelwise.server.security import COOKIE, cookie_value, forwarded_client

SECRET = "/api/v1/model"


@pytest.fixture(scope="module")
def protected(run):
    """A server that wants a token, attacked by those who have none."""
    with running(run, decoders=0, token=TOKEN) as client:
        yield client


def sent_raw(server, content, half_closed=True):
    """Send bytes; return all that comes until the server ends the connection."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as line:
        with suppress(OSError):  # the server need not read on once it has refused
            line.sendall(content)
            if half_closed:
                line.shutdown(socket.SHUT_WR)  # not connected any more, where it has closed
        with suppress(ConnectionError):
            while part := line.recv(1 << 16):
                received += part
    return received


def answers(server, content):
    """Return the status of each answer, and all that came.

    The connection is not half-closed: a server may take that for the end, and not answer.
    """
    received = sent_raw(server, content, half_closed=False)
    return [int(head[:3]) for head in received.split(b"HTTP/1.1 ")[1:]], received


def request(target, *lines, method="GET", host="localhost", last=True):
    """Return a request, after which the server ends the connection if it is the last one."""
    end = ["Connection: close"] if last else []
    head = [f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, *end, "", ""]
    return "\r\n".join(head).encode("utf-8")


PATHS = f"""
/static/..{SECRET} /static/../..{SECRET} /static/..%2fapi%2fv1%2fmodel /static/%2e%2e/api/v1/model
/health/..{SECRET} /health/live/../..{SECRET} /{SECRET} {SECRET}/ {SECRET}%00 {SECRET};/static/
{SECRET}?/static/ {SECRET}#/static/ /API/V1/MODEL /%61pi/v1/model http://localhost{SECRET}
http://evil.example/static{SECRET} * /static/\\..\\..\\api /api/v1/session/../model
/health/../api/v1/model /metrics /openapi.json /docs
""".split()


@pytest.mark.parametrize("target", PATHS)
def test_no_way_of_writing_a_path_leads_past_the_token(protected, target):
    statuses, received = answers(protected, request(target))
    assert len(statuses) == 1
    assert statuses[0] in (400, 401, 404, 405), received[:300]
    assert b"labels" not in received.split(b"\r\n\r\n", 1)[-1]
    assert answers(protected, request(SECRET, f"Authorization: Bearer {TOKEN}"))[0] == [200]


HOSTS = (
    *("evil.example", "127.0.0.1.evil.example", "localhost.", "localhost/evil.example", "0.0.0.0"),
    *("localhost?evil.example", "localhost#evil.example", "localhost:80:80", "localhost:port"),
    *("[::1", "[::2]"),
    *("localhost@evil.example", "evil.example#localhost", "localhost evil.example", "localhost/"),
    *("localhost,evil.example", "localhost.evil.example", "evil.example:80:localhost", ""),
    *("lоcalhost", "localhost\u3002evil", "xn--lcalhost-96g"),  # the first with a Cyrillic o
    *("127.1", "2130706433", "0x7f000001", "[::ffff:7f00:1%25lo]", "localhost:99999999"),
)


@pytest.mark.parametrize("host", HOSTS)
def test_no_way_of_writing_a_host_leads_here(protected, host):
    """A name that another site can own, made to lead to this machine, is not answered."""
    for path in ("/", "/api/v1/model", "/health/live"):
        statuses, received = answers(protected, request(path, host=host))
        assert statuses == [400], received[:200]


BOTH = "Content-Length: 4\r\nTransfer-Encoding: "
DOUBTFUL = (
    *("Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5, 6", "Content-Length: +5"),
    *("Content-Length: 0x5", "Content-Length: -1", "Content-Length: 5_0", "Content-Length:"),
    *("Content-Length : 5", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
    *("Transfer-Encoding: xchunked", "Transfer-Encoding: chunked, chunked"),
    *("Transfer-Encoding: gzip", "Transfer-Encoding : chunked", "Host: evil.example"),
    *(" folded: yes", "a\x00b: c", "a b: c", "no colon"),
    *(BOTH + one for one in ("chunked", "identity", "gzip, chunked")),
)


@pytest.mark.parametrize("lines", DOUBTFUL)
def test_a_doubtful_head_is_one_request_and_refused(protected, lines):
    head = request("/api/v1/session", lines, method="POST", last=False)
    statuses, received = answers(protected, head + b"0\r\n\r\n" + request("/health/live"))
    assert statuses
    assert set(statuses) <= {400, 501}, received[:400]  # and the request behind it is not answered


CHUNKED = ("Content-Type: application/json", "Transfer-Encoding: chunked")
CHUNKS = request("/api/v1/session", *CHUNKED, method="POST", last=False)
SOCKET = ("Upgrade: websocket", "Connection: Upgrade, close", "Sec-WebSocket-Key: AAAA")
HTTP2 = ("Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings, close", "HTTP2-Settings: AAMAAABk")
FORGED = (  # bytes, the statuses of the first answer, those of the others
    *((CHUNKS + body, {401, 422}, [200]) for body in (
        b"5;ext=1\r\n{}   \r\n0\r\n\r\n", b"5\r\n{}   \r\n0\r\nHost: evil\r\n\r\n",
    )),
    *((CHUNKS + body, {400, 422}, []) for body in (b"5\r\n{}   0\r\n\r\n", b"-5\r\n{}")),
    *((request("/ws", *SOCKET, "Sec-WebSocket-Version: 13", last=False), {401}, []),),
    *((request("/", *HTTP2, last=False), {200}, []),),
    *((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}, [400]),),
    *((body, {400}, []) for body in (
        b"\r\n" * 200 + b"\x16\x03\x01", b"GET\r\n\r\n",
    )),
)  # fmt: skip


@pytest.mark.parametrize(("sent", "first", "others"), FORGED)
def test_odd_and_broken_requests_lead_nowhere(protected, sent, first, others):
    """One that is odd is one request, one that is broken ends the connection."""
    statuses, received = answers(protected, sent + request("/health/live"))
    assert set(statuses[:1]) <= first, received[:200]
    assert statuses[1:] == others


def test_thousands_of_parameters_are_one_answer_and_requests_in_a_row_one_each(protected):
    token = f"Authorization: Bearer {TOKEN}"
    for target in ("/api/v1/search?" + "q=a&" * 3500, "/api/v1/complete?" + "&" * 15_000):
        (status,), _ = answers(protected, request(target, token))
        assert status in (404, 409, 422, 503)
    targets = ["/health/live", SECRET, "/nothing", "/static/style.css"] * 5
    row = b"".join(request(target, last=False) for target in targets)
    statuses, _ = answers(protected, row + request("/health/live"))
    assert statuses == [200, 401, 401, 200] * 5 + [200]


@pytest.mark.parametrize(
    "cookie", ["\\" * 15_000, '"' + "\\" * 15_000, f'{COOKIE}="' + "\\0" * 7000]
)
def test_a_cookie_header_is_read_in_linear_time(protected, cookie):
    """SimpleCookie takes 0.8 s of processor time for each of these: 24 s for thirty."""
    began = time.process_time()
    for _ in range(30):
        assert protected.send("GET", "/api/v1/model", headers={"Cookie": cookie})[0] == 401
    assert time.process_time() - began < 6


def test_our_cookie_is_found_among_others(protected):
    own = f"{COOKIE}={cookie_value(TOKEN)}"
    for cookie in ("{}", "a=1; {}", "{}; b", "\\\\;;=; {} ;=", "{}=x; {}", 'c="{}"; {}'):
        for given, status in ((own, 200), (own[:-1], 401)):
            headers = {"Cookie": cookie.replace("{}", given)}
            assert protected.send("GET", "/api/v1/model", headers=headers)[0] == status


def test_a_message_repeats_no_more_than_it_must_of_what_was_sent(server):
    """It is cut in its middle: what was wrong stands at its beginning, the way out at its end."""
    answer = server.send("GET", "/api/v1/review?label=" + "a" * 5000)
    words = server.problem(answer, 422)
    assert len(words) <= 2000
    assert words.startswith("unknown label 'aaa")
    assert words.endswith("'row'")


WORK = ["/api/v1/search?q=dog", "/api/v1/labels", "/metrics", "/api/v1/review", "/docs"]
FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
]
FRIEND = "https://photos.example"


@pytest.mark.parametrize("headers", FOREIGN)
def test_pages_of_other_sites_get_nothing_that_costs_work(server, headers):
    photo = server.get("/api/v1/search?q=dog&top=1")["hits"][0]["id"]
    for path in [*WORK, f"/api/v1/photos/{photo}/thumbnail", f"/api/v1/photos/{photo}/similar"]:
        for method in ("GET", "HEAD"):
            assert server.send(method, path, headers=headers)[0] == 403, path
    assert server.send("OPTIONS", "/api/v1/search?q=dog", headers=headers)[0] == 403
    labels = {"labels": {"dog": "present"}}
    assert server.put(f"/api/v1/photos/{photo}/labels", labels, **headers)[0] == 403
    assert server.upload(("a.png", encoded()), **headers)[0] == 403
    assert not any(one["corrected"] for one in server.get(f"/api/v1/photos/{photo}")["labels"])


def test_a_link_from_another_site_leads_to_the_page_which_is_answered_as_programs_are(server):
    for headers in FOREIGN:
        for path in ("/", "/static/style.css", "/health/live"):
            assert server.send("GET", path, headers=headers)[0] == 200
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
        strangers = (f"{FRIEND}.evil", f"{FRIEND}:444", "http://photos.example", "null")
        for other in (*strangers, FRIEND[:-1]):
            for method in ("POST", "OPTIONS"):
                given = asking | {"Origin": other}
                status, headers, _ = server.send(method, "/api/v1/predict", headers=given)
                assert status == 403
                assert "access-control-allow-origin" not in headers
        assert server.send("GET", "/api/v1/model", headers=cross)[0] == 403  # says no origin
        assert "access-control-allow-credentials" not in headers


def test_origins_and_proxies_are_given_exactly():
    for origin in ("*", "null", "photos.example", f"{FRIEND}/", "https://A.example"):
        with pytest.raises(SettingsError, match="an origin must be"):
            ServeSettings(origins=(origin,))
    for address in ("", "*", "10.0.0.0/8", "proxy.example", "127.0.0.1, ::1"):
        with pytest.raises(SettingsError, match="must be the address of one proxy"):
            ServeSettings(trusted_proxies=(address,))


PROXY, STRANGER = "127.0.0.1", "203.0.113.9"


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ((PROXY,), [STRANGER], STRANGER),
        ((PROXY,), [f"10.0.0.1, {STRANGER}"], STRANGER),  # one hop: what the proxy itself saw
        ((PROXY,), ["10.0.0.1", STRANGER], STRANGER),
        ((PROXY,), ["2001:DB8::1"], "2001:db8::1"),
        *(((PROXY,), one, PROXY) for one in ([], ["no address"], [f"{STRANGER}, "])),
        (("127.0.0.2",), [STRANGER], PROXY),  # from anyone else it is only what they say
        ((), [STRANGER], PROXY),
    ],
)
def test_only_a_trusted_proxy_says_who_asks(run, tmp_path, trusted, forwarded, client):
    log = tmp_path / "access.jsonl"
    with running(run, decoders=0, access_log=log, trusted_proxies=trusted) as server:
        lines = [f"X-Forwarded-For: {one}" for one in forwarded]
        assert answers(server, request("/health/live", *lines))[0] == [200]
    assert json.loads(log.read_text().splitlines()[0])["client"] == client


def test_an_address_of_a_proxy_is_the_same_however_it_is_written():
    settings = ServeSettings(trusted_proxies=("0:0::1", "10.1.2.3"))
    given = {"x-forwarded-for": ["203.0.113.9"]}
    for peer in ("::1", "10.1.2.3", "::ffff:10.1.2.3"):
        assert forwarded_client(peer, given, settings.proxies) == "203.0.113.9"
    assert forwarded_client("::2", given, settings.proxies) == "::2"
