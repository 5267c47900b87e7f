"""Servers that lie to those who ask them: tags for Immich.

The oracle is the one error that it knows, in a sentence.
"""

import pytest
from lying_server import answering

from labelwise.contrib.immich import Immich, ServiceError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


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
    with answering(answer) as address, pytest.raises(ServiceError, match=sentence):
        Immich(address, "key").tags()
