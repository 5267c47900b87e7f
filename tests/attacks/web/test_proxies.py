"""Addresses that a proxy forwards. Oracle: the access log, which says who asked."""

import json
import socket

import pytest
from web_setup import running

from labelwise.errors import SettingsError
from labelwise.server import ServeSettings
from labelwise.server.security import forwarded_client

PROXY = "127.0.0.1"


@pytest.mark.parametrize(
    ("trusted", "forwarded", "client"),
    [
        ((PROXY,), ["203.0.113.9"], "203.0.113.9"),
        ((PROXY,), ["10.0.0.1, 203.0.113.9"], "203.0.113.9"),  # one hop: what the proxy itself saw
        ((PROXY,), ["10.0.0.1", "203.0.113.9"], "203.0.113.9"),
        ((PROXY,), ["2001:DB8::1"], "2001:db8::1"),
        ((PROXY,), [], PROXY),
        ((PROXY,), ["no address"], PROXY),
        ((PROXY,), ["203.0.113.9, "], PROXY),
        (("127.0.0.2",), ["203.0.113.9"], PROXY),  # from anyone else it is only what they say
        ((), ["203.0.113.9"], PROXY),
    ],
)
def test_only_a_trusted_proxy_says_who_asks(run, tmp_path, trusted, forwarded, client):
    log = tmp_path / "access.jsonl"
    with running(run, decoders=0, access_log=log, trusted_proxies=trusted) as server:
        lines = "".join(f"X-Forwarded-For: {one}\r\n" for one in forwarded)
        head = f"GET /health/live HTTP/1.1\r\nHost: localhost\r\n{lines}Connection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 60) as line:
            line.sendall(head.encode())
            assert line.recv(12) == b"HTTP/1.1 200"
    assert json.loads(log.read_text().splitlines()[0])["client"] == client


def test_clients_behind_a_proxy_have_rates_of_their_own(run):
    with running(run, decoders=0, rate=0.25, trusted_proxies=(PROXY,)) as server:
        statuses = [
            server.send("GET", "/api/v1/model", headers={"X-Forwarded-For": f"203.0.113.{n}"})[0]
            for n in (1, 1, 2, 2)
        ]
    assert statuses == [200, 429, 200, 429]


def test_a_trusted_proxy_may_have_all_connections(run):
    options = {"decoders": 0, "connections": 8, "client_connections": 1}
    head = b"POST /api/v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    for trusted, status in (((PROXY,), b"200"), ((), b"503")):
        with (
            running(run, trusted_proxies=trusted, **options) as server,
            socket.create_connection(("127.0.0.1", server.port), 60) as held,
        ):
            held.sendall(head + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n")
            assert held.recv(12) == b"HTTP/1.1 100"  # a request is in work on it
            assert server.send("GET", "/api/v1/model")[0] == int(status)


@pytest.mark.parametrize("address", ["", "*", "10.0.0.0/8", "proxy.example", "127.0.0.1, ::1"])
def test_a_proxy_is_named_by_its_exact_address(address):
    with pytest.raises(SettingsError, match="must be the address of one proxy"):
        ServeSettings(trusted_proxies=(address,))


def test_an_address_is_the_same_however_it_is_written():
    settings = ServeSettings(trusted_proxies=("0:0::1", "10.1.2.3"))
    given = {"x-forwarded-for": ["203.0.113.9"]}
    for peer in ("::1", "10.1.2.3", "::ffff:10.1.2.3"):
        assert forwarded_client(peer, given, settings.proxies) == "203.0.113.9"
    assert forwarded_client("::2", given, settings.proxies) == "::2"
