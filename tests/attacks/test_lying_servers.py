"""Servers that lie to our client. The oracle is its one error, in a sentence, at bounded cost."""

import pytest
from lying_server import answering

import labelwise.client.connection as connection
from labelwise.client import Client, ServerError

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
