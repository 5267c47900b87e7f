"""Turns of the server's event loop, held to how many connections each may handle."""

import asyncio
import selectors
import socket
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from labelwise.server import ServeSettings
from labelwise.server.serving import (
    ACCEPTED_AT_ONCE,
    AT_ONCE,
    BoundedSelector,
    Server,
    listen,
    new_event_loop,
    server_config,
)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has another kind of event loop")

MANY = 3 * AT_ONCE + 3
NEWCOMERS = 3 * ACCEPTED_AT_ONCE + 5


@pytest.fixture
def ready():
    """Sockets with something to read."""
    with ExitStack() as stack:
        pairs = [[*map(stack.enter_context, socket.socketpair())] for _ in range(MANY)]
        for _, other in pairs:
            other.send(b"x")
        yield [one for one, _ in pairs]


@pytest.fixture
def selector(ready):
    with BoundedSelector() as selector:
        for one in ready:
            selector.register(one, selectors.EVENT_READ)
        yield selector


def files(found):
    return [key.fileobj for key, _ in found]


def test_everyone_has_one_turn_in_a_round(ready, selector):
    rounds = [files(selector.select(0)) for _ in range(4)]
    assert [len(some) for some in rounds] == [AT_ONCE] * 3 + [3]
    assert set().union(*rounds) == set(ready)
    assert len(selector.select(0)) == AT_ONCE  # nobody has read: the next round


def test_who_waits_for_a_turn_may_be_closed_or_changed_meanwhile(ready, selector):
    first = files(selector.select(0))
    closed, turned, *others = (one for one in ready if one not in first)
    selector.unregister(closed)
    selector.modify(turned, selectors.EVENT_WRITE)
    rest = [one for _ in range(3) for one in selector.select(0)]
    assert set(files(rest)) == set(others)  # what came for the one that turned was not a write


def test_a_timer_waits_for_one_turn_and_not_for_everyone(ready):
    read, read_before_timer = [], []

    def take(one):
        one.recv(1)
        read.append(one)

    async def run():
        loop = asyncio.get_running_loop()
        for one in ready:
            loop.add_reader(one, take, one)
        loop.call_later(0, lambda: read_before_timer.extend(read))
        while len(read) < MANY:
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
    assert len(read_before_timer) <= AT_ONCE
    assert set(read) == set(ready)


async def no_app(scope, receive, send):
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"{scope['type']}.{step}.complete"})


def test_many_connections_come_at_once_and_are_taken_in_turns():
    """The system keeps them while the loop is held up; then no turn takes more than its share."""
    settings = ServeSettings(port=0)
    config = server_config(no_app, settings)
    config.load()
    made, per_turn, protocol = [], [0], config.http_protocol_class
    config.http_protocol_class = lambda **given: made.append(1) or protocol(**given)

    def connect_many():  # runs on the loop, which can take none of them meanwhile
        for _ in range(NEWCOMERS):
            stack.enter_context(socket.create_connection(listener.getsockname(), timeout=60))
        asyncio.get_running_loop().create_task(count())

    async def count():
        while per_turn[-1] < NEWCOMERS:
            per_turn.append(len(made))
            await asyncio.sleep(0)
        server.should_exit = True

    with listen(settings) as listener, ExitStack() as stack:
        server = Server(config, connect_many)
        server.run(sockets=[listener])
    assert len(made) == NEWCOMERS
    assert max(np.diff(per_turn)) <= ACCEPTED_AT_ONCE + 1  # from 3.12 on the loop takes one more
