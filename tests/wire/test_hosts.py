"""Fronts of other hosts at a core's door: who has the secret gets in, nobody else is heard."""

from __future__ import annotations

import msgspec
import pytest

from jengine.engine.process.client import ProcessClient
from jengine.engine.process.launch import launch
from jengine.errors import ConfigError, EngineDead
from jengine.wire import doors
from jengine.wire.doors import Door, checked_host, checked_secret, own_address, tcp
from tests.engine.process.cores import PROGRAM, read_all, tokens
from tests.engine.process.scripted_core import Settings
from tests.engine.scripted import told
from tests.engine.test_client import PROMPT, wire

SECRET = b"a secret of sixteen bytes or more"
DOOR = Door("tcp://127.0.0.1:*", SECRET)


def test_a_front_with_the_secret_is_served_beside_the_cores_owner() -> None:
    owner = launch(PROGRAM, msgspec.msgpack.encode(Settings()), door=DOOR)
    try:
        ready = owner.wait_until_ready(seconds=60)
        assert ready.door is not None and ready.door.startswith("tcp://127.0.0.1:")
        remote = ProcessClient(ready.door, secret=SECRET)
        assert remote.wait_until_ready(seconds=60).process == ready.process
        for client in (remote, owner):
            client.add(wire("a", max_tokens=5))
            assert tokens(read_all(client)["a"]) == told(PROMPT, 5)
        stranger = ProcessClient(ready.door, secret=b"another secret of sixteen bytes")
        with pytest.raises(EngineDead, match="connection"):
            stranger.wait_until_ready(seconds=60)
        stranger.shutdown()
        silent = ProcessClient(ready.door)
        with pytest.raises(EngineDead):
            silent.wait_until_ready(seconds=1)
        silent.shutdown()
        assert remote.state().dropped_frames == 0, "what they sent never arrived"
        remote.shutdown()
        assert owner.is_alive, "a front that leaves does not end the core"
    finally:
        owner.shutdown()


def test_a_remote_front_notices_the_end_of_the_core() -> None:
    owner = launch(PROGRAM, msgspec.msgpack.encode(Settings()), door=DOOR)
    ready = owner.wait_until_ready(seconds=60)
    assert ready.door is not None
    remote = ProcessClient(ready.door, secret=SECRET)
    remote.wait_until_ready(seconds=60)
    remote.add(wire("a", max_tokens=1000))
    owner.shutdown()
    with pytest.raises(EngineDead):
        while True:
            remote.outputs()
    remote.shutdown()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "224.0.0.1", "no such host"])
def test_only_one_address_of_one_host_is_taken(host: str) -> None:
    with pytest.raises(ConfigError, match="data_parallel_address="):
        checked_host("data_parallel_address", host)


def test_addresses_and_secrets() -> None:
    assert checked_host("x", "127.0.0.1") == own_address("127.0.0.1", 9) == "127.0.0.1"
    assert tcp("127.0.0.1", 0) == "tcp://127.0.0.1:*" and tcp("::1", 5) == "tcp://[::1]:5"
    assert checked_secret("x", "s" * 16) == b"s" * 16
    for short in (None, "", "s" * 15):
        with pytest.raises(ConfigError, match="at least 16 bytes"):
            checked_secret("x", short)
    assert "secret" not in repr(DOOR)
    assert Door("tcp://127.0.0.1:5").place == ("127.0.0.1", 5)
    assert Door(tcp("::1", 0)).place == ("::1", 0)


def test_the_address_at_which_others_reach_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for peer in ("127.0.0.1:6379", "ray://127.0.0.1:10001", "ray://localhost:10001"):
        assert doors.outward_address(peer) == "127.0.0.1"
    usual = doors.outward_address(None)
    for other in ("auto", "local", "no-such-host.invalid:6379"):
        assert doors.outward_address(other) == usual
    monkeypatch.setattr(doors, "FAR_AWAY", ("no-such-host.invalid", 9))
    assert doors.outward_address(None) == "127.0.0.1"
