"""Servers that lie to those who ask them: our client, and tags for Immich.

The oracle is the one error that each knows, in a sentence.
"""

import pytest
from lying_server import answering

import labelwise.client.connection as connection
from labelwise.client import Client, ServerError
from labelwise.contrib.immich import Immich, ImmichError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def jobs(answer):
    with answering(answer) as address:
        return Client(address.removesuffix("/a"), retries=0).every_job()


@pytest.mark.parametrize("length", [b"2", b"", b"-5", b"x"])
def test_a_true_answer_is_read(length):
    """A length that is none is as none: the answer ends with its connection."""
    head = b"Content-Length: " + length + b"\r\n" if length else b""
    assert jobs(OK + head + b"\r\n[]") == []


@pytest.mark.parametrize("length", [3, 10**12, 2**63, 10**30])
def test_an_answer_shorter_than_it_says_is_none(length):
    """Reserving as much as is said, or taking the number for one of C, ended in other errors."""
    with pytest.raises(ServerError, match="does not answer"):
        jobs(OK + b"Content-Length: %d\r\n\r\n[]" % length)


def test_an_answer_without_end_is_given_up(monkeypatch):
    monkeypatch.setattr(connection, "MOST_BYTES", 1000)
    assert jobs(OK + b"\r\n[" + b" " * 998 + b"]") == []
    with pytest.raises(ServerError, match="more than 1,000 bytes"):
        jobs(OK + b"\r\n[" + b" " * 999 + b"]")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"nonsense\r\n\r\n", "does not answer"),
        (OK + b"a: b\r\n" * 200 + b"\r\n[]", "does not answer"),
        (OK + b"\r\n" + b"[" * 100_000, "with no JSON"),
        (OK + b"Content-Length: 9\r\n\r\n[", "with no JSON"),
    ],
)
def test_a_server_that_is_not_immich(answer, sentence):
    with answering(answer) as address, pytest.raises(ImmichError, match=sentence):
        Immich(address, "key").tags()
