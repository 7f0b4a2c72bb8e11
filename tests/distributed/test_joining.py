"""Cores of other hosts join at one address: every rank once, of one version, with the secret."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from jengine.distributed import joining
from jengine.distributed.joining import JoinDesk, JoinedHost
from jengine.engine.process.to_front import Progress
from jengine.errors import ConfigError
from jengine.wire.doors import Door
from tests.engine.process.cores import eventually

SECRET = b"a secret of sixteen bytes or more"


@pytest.fixture
def desk() -> Iterator[JoinDesk]:
    one = JoinDesk(Door("tcp://127.0.0.1:*", SECRET), range(1, 4), "1.0")
    yield one
    one.close()


def host(desk: JoinDesk, left: list[str], secret: bytes = SECRET) -> JoinedHost:
    return JoinedHost(Door(desk.address, secret), left.append)


def test_ranks_join_in_any_order_and_learn_that_the_front_has_gone(desk: JoinDesk) -> None:
    found: list[str] = []
    told: list[Progress] = []
    waiting = threading.Thread(target=lambda: found.extend(desk.wait(told.append, 60)))
    waiting.start()
    left: list[str] = []
    hosts = [host(desk, left) for _ in range(2)]
    hosts[0].join({2: "tcp://two", 3: "tcp://three"}, "1.0", 60)
    assert desk.missing == [1]
    eventually(lambda: told and told[-1].done == 2)
    hosts[1].join({1: "tcp://one"}, "1.0", 60)
    waiting.join(60)
    assert found == ["tcp://one", "tcp://two", "tcp://three"]
    assert told[-1].total == 3
    desk.close()
    eventually(lambda: len(left) == 2)
    assert "has gone" in left[0]
    for one in hosts:
        one.close()


@pytest.mark.parametrize(
    ("addresses", "version", "why"),
    [
        ({0: "tcp://x"}, "1.0", r"ranks \[0\]: expected some of \[1, 2, 3\]"),
        ({}, "1.0", "expected some of"),
        ({1: "tcp://x"}, "2.0", "it runs jengine 2.0, and the front 1.0"),
        ({2: "tcp://x"}, "1.0", r"ranks \[2\] have joined already"),
    ],
)
def test_what_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    desk: JoinDesk,
    addresses: dict[int, str],
    version: str,
    why: str,
) -> None:
    monkeypatch.setattr(joining, "COMING_AGAIN", 0.1)
    first = host(desk, [])
    first.join({2: "tcp://two"}, "1.0", 60)
    second = host(desk, [])
    with pytest.raises(ConfigError, match=why):
        second.join(addresses, version, 10)
    assert desk.missing == [1, 3]
    for one in (first, second):
        one.close()


def test_a_host_comes_again_once_its_former_connection_has_ended(
    monkeypatch: pytest.MonkeyPatch, desk: JoinDesk
) -> None:
    monkeypatch.setattr(joining, "AGAIN", 0.05)
    back: list[tuple[int, str]] = []
    desk.when_back(lambda rank, address: back.append((rank, address)))
    first, other, again = (host(desk, []) for _ in range(3))
    first.join({1: "tcp://one", 2: "tcp://two"}, "1.0", 60)
    other.join({3: "tcp://three"}, "1.0", 60)
    joined = threading.Event()

    def come_again() -> None:
        again.join({1: "tcp://new one", 2: "tcp://new two"}, "1.0", 60)
        joined.set()

    thread = threading.Thread(target=come_again)
    thread.start()
    assert not joined.wait(0.3) and not back, "the first host is still there"
    first.close()
    thread.join(60)
    assert joined.is_set() and back == [(1, "tcp://new one"), (2, "tcp://new two")]
    assert desk.wait(lambda _: None, 60) == ["tcp://new one", "tcp://new two", "tcp://three"]
    for one in (other, again):
        one.close()


def test_another_secret_and_nobody_there(desk: JoinDesk) -> None:
    left: list[str] = []
    stranger = host(desk, left, b"another secret of sixteen bytes")
    with pytest.raises(ConfigError, match="Is the secret the same"):
        stranger.join({1: "tcp://x"}, "1.0", 60)
    stranger.close()
    assert not left and desk.missing == [1, 2, 3]
    desk.close()
    late = host(desk, left)
    with pytest.raises(ConfigError, match="nobody has answered"):
        late.join({1: "tcp://x"}, "1.0", 0.2)
    late.close()


def test_ranks_that_do_not_come_are_named(desk: JoinDesk) -> None:
    with pytest.raises(ConfigError, match=r"ranks \[1, 2, 3\] have not joined"):
        desk.wait(lambda _: None, 0.1)


def test_a_port_in_use_is_said(desk: JoinDesk) -> None:
    with pytest.raises(ConfigError, match="cannot listen there"):
        JoinDesk(Door(desk.address, SECRET), range(1), "1.0")
