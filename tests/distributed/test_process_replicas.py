"""Several cores in processes of their own behind one client."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest

from jengine.distributed import process_replicas
from jengine.distributed.process_replicas import ProcessReplicas
from jengine.engine.process.launch import launch
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.questions import AskHealth, AskStats, Pause, ResetPrefixCache, Resume
from jengine.errors import ConfigError, EngineDead, RequestError
from jengine.scheduler.orders import order_of
from tests.engine.process.cores import PROGRAM, eventually, read_all, tokens
from tests.engine.process.scripted_core import Settings
from tests.engine.scripted import told
from tests.engine.test_client import wire

BLOCK = 16


@contextmanager
def replicas(count: int, *, policy: str = "fcfs", **settings: object) -> Iterator[ProcessReplicas]:
    data = msgspec.msgpack.encode(msgspec.convert(settings, Settings))
    mailbox = Mailbox()
    cores = [launch(PROGRAM, data, mailbox=mailbox) for _ in range(count)]
    client = ProcessReplicas(cores, mailbox, BLOCK, order_of(policy))
    try:
        for core in cores:
            core.wait_until_ready(seconds=60)
        yield client
    finally:
        client.shutdown()


def asked(name: str, prompt: list[int], count: int = 4, priority: int = 0):
    one = wire(name, max_tokens=count)
    return msgspec.structs.replace(one, prompt_token_ids=prompt, priority=priority)


def prompt_of(number: int, length: int = 3 * BLOCK) -> list[int]:
    return [3 + (number * 31 + i * (number + 7)) % 90 for i in range(length)]


def places(client: ProcessReplicas) -> Counter[int]:
    return Counter(placed.replica for placed in client._router.requests.values())


def test_requests_are_spread_and_all_answered() -> None:
    with replicas(2) as client:
        prompts = {str(number): prompt_of(number) for number in range(12)}
        for name, prompt in prompts.items():
            client.add(asked(name, prompt, 6))
        assert places(client) == {0: 6, 1: 6}
        found = read_all(client)
        assert {name: tokens(deltas) for name, deltas in found.items()} == {
            name: told(prompt, 6) for name, prompt in prompts.items()
        }
        answered_by = Counter(deltas[-1].times.engine for deltas in found.values())
        assert answered_by == {0: 6, 1: 6}
        counts = client.ask(AskStats())
        assert counts.running == counts.waiting == 0 and len(counts.replicas) == 2
        assert all(one.generation_tokens for one in counts.replicas)
        assert len(client.ask(AskHealth())) == 2 and not client.has_work
        with pytest.raises(RequestError, match="at least 1"):
            client.add(asked("no", prompt_of(1), 0))
        assert not client._router.requests and not client.has_work


def test_a_prompt_goes_where_its_prefix_is_cached() -> None:
    with replicas(2) as client:
        first, second = prompt_of(1), prompt_of(2)
        client.add(asked("a", first))
        client.add(asked("b", second))
        read_all(client)
        eventually(lambda: all(core.contents.prefix([]) == 0 for core in client.cores))
        eventually(lambda: sum(bool(core.contents._hashes) for core in client.cores) == 2)
        for turn in range(3):
            client.add(asked(f"b{turn}", [*second, 5 + turn]))
            assert places(client) == {1: 1}
            client.add(asked(f"a{turn}", [*first, 5 + turn]))
            assert places(client) == {0: 1, 1: 1}
            deltas = read_all(client)
            assert deltas[f"a{turn}"][0].num_cached_tokens == 3 * BLOCK
        assert client.ask(ResetPrefixCache())
        eventually(lambda: not any(core.contents._hashes for core in client.cores))


def test_contents_that_were_reused_are_forgotten() -> None:
    with replicas(1, num_blocks=9) as client:
        for number in range(6):
            client.add(asked(str(number), prompt_of(number)))
            read_all(client)
        (core,) = client.cores
        eventually(lambda: 0 < len(core.contents._hashes) <= 8)
        client.add(asked("again", [*prompt_of(5), 7]))
        assert read_all(client)["again"][0].num_cached_tokens == 3 * BLOCK


def test_a_core_ends_after_its_last_request_and_others_come() -> None:
    with replicas(3, step_seconds=0.005) as client:
        for number in range(6):
            client.add(asked(str(number), prompt_of(number), 40))
        assert places(client) == {0: 2, 1: 2, 2: 2}
        assert not client.retire(1, 0.0), "it has requests, and stays"
        assert client.serving == [0, 1, 2]
        done: list[bool] = []
        retiring = threading.Thread(target=lambda: done.append(client.retire(2, 60)))
        retiring.start()
        eventually(lambda: client.serving == [0, 1])
        for number in range(6, 12):
            client.add(asked(str(number), prompt_of(number), 8))
        assert places(client)[2] == 2, "it gets no more"
        found = read_all(client)
        retiring.join(60)
        assert done == [True]
        for number in range(12):
            assert tokens(found[str(number)]) == told(prompt_of(number), 40 if number < 6 else 8)
        assert len(client.ask(AskHealth())) == len(client.state().parts) == 2
        assert client.ask(AskStats()).generation_tokens == 6 * 40 + 6 * 8, "what it counted stays"

        data = msgspec.msgpack.encode(msgspec.convert({}, Settings))
        for place in (2, 3):
            assert client.next_place == place
            core = launch(PROGRAM, data, mailbox=client.mailbox)
            core.wait_until_ready(seconds=60)
            client.add_core(core)
        assert client.serving == [0, 1, 2, 3] and len(client.ask(AskHealth())) == 4
        for number in range(8):
            client.add(asked(f"again {number}", prompt_of(20 + number), 6))
        assert places(client) == {0: 2, 1: 2, 2: 2, 3: 2}
        again = read_all(client)
        assert all(
            tokens(again[f"again {number}"]) == told(prompt_of(20 + number), 6)
            for number in range(8)
        )
        for index in (3, 2, 1):
            assert client.retire(index, 60)
        with pytest.raises(ConfigError, match="the last core"):
            client.retire(0, 60)


def test_a_core_that_dies_takes_its_own_requests_only(caplog: pytest.LogCaptureFixture) -> None:
    with replicas(2, step_seconds=0.005) as client:
        dead = []
        client.when_dead(dead.append)
        os.kill(client.cores[0].child.process, signal.SIGSTOP)  # it ends none of its requests
        for number in range(6):
            client.add(asked(str(number), prompt_of(number), 60))
        lost = {n for n, placed in client._router.requests.items() if placed.replica == 0}
        os.kill(client.cores[0].child.process, signal.SIGKILL)
        found = read_all(client)
        for name, deltas in found.items():
            if name in lost:
                assert deltas[-1].finish_reason == "error"
                assert "core 0 of 2 has died" in str(deltas[-1].message)
                assert "SIGKILL" not in str(deltas[-1].message), "causes are for the log"
                assert deltas[-1].engine_lost
            else:
                assert tokens(deltas) == told(prompt_of(int(name)), 60)
        assert set(found) == {str(number) for number in range(6)} and len(lost) == 3
        client.check_alive()
        assert "dead: the engine core" in client.ask(AskHealth())[0].where
        assert client.ask(AskHealth())[1].where == "core 1, script"
        assert "core 0 of 2 has died: the engine core" in caplog.text
        assert "SIGKILL" in caplog.text and "Create a new engine" not in caplog.text
        first, second = client.state().parts
        assert "SIGKILL" in str(first.death) and second.death is None
        assert (first.open_requests, second.open_requests) == (0, 0)
        named = msgspec.structs.replace(asked("named", prompt_of(0)), replica=0)
        with pytest.raises(RequestError, match="data_parallel_rank 0 does not serve"):
            client.add(named)
        assert not client._router.requests
        client.add(asked("later", prompt_of(0)))
        assert tokens(read_all(client)["later"]) == told(prompt_of(0), 4)
        assert client.ask(AskStats()).replicas[0].running == 0 and not dead

        client.add(asked("last", prompt_of(1), 900))
        client.outputs()
        os.kill(client.cores[1].child.process, signal.SIGKILL)
        with pytest.raises(EngineDead, match="killed by SIGKILL"):
            while True:
                client.outputs()
        assert dead
        for call in (
            client.check_alive,
            partial(client.ask, AskStats()),
            lambda: client.add(asked("x", [5])),
        ):
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                call()


def test_urgent_requests_go_where_fewer_urgent_ones_are() -> None:
    with replicas(2, policy="priority", step_seconds=0.005) as client:
        client.add(asked("urgent", prompt_of(1), 400, priority=-1))
        for number in range(3):
            client.add(asked(f"lazy{number}", prompt_of(number + 2), 400, priority=5))
        chosen = {name: placed.replica for name, placed in client._router.requests.items()}
        client.add(asked("more urgent", prompt_of(9), 4, priority=-2))
        client.add(asked("as urgent", prompt_of(8), 4, priority=-1))
        placed = client._router.requests
        other = 1 - chosen["urgent"]
        assert placed["as urgent"].replica == other, "the lazy ones there do not delay it"
        for name in list(placed):
            client.abort(name)
        client.abort("unknown")
        read_all(client)


def test_pauses_hold_every_core(caplog: pytest.LogCaptureFixture) -> None:
    with replicas(2, step_seconds=0.002) as client:
        for number in range(4):
            client.add(asked(str(number), prompt_of(number), 50))
        client.ask(Pause())
        client.outputs(wait=False)
        eventually(lambda: client.state().paused)
        steps = client.state().steps
        assert client.outputs() == []
        eventually(lambda: client.state().age < 0.4)
        assert client.state().steps == steps
        client.ask(Resume())
        assert all(deltas[-1].finish_reason for deltas in read_all(client).values())
    assert "has died" not in caplog.text, "they were shut down"


@pytest.mark.slow
def test_a_core_takes_the_place_of_one_that_has_died() -> None:
    data = msgspec.msgpack.encode(Settings())
    with replicas(2, step_seconds=0.005) as client:
        client.add(asked("lost", prompt_of(1), 900))
        lost = client._router.requests["lost"].replica
        os.kill(client.cores[lost].child.process, signal.SIGKILL)
        eventually(lambda: client.state().parts[lost].death)
        other = launch(PROGRAM, data, mailbox=client.mailbox)
        other.wait_until_ready(seconds=60)
        client.replace(lost, other)
        assert [part.death for part in client.state().parts] == [None, None]
        for number in range(2):
            client.add(asked(str(number), prompt_of(number + 2)))
        assert places(client) == {0: 1, 1: 1}
        found = read_all(client)
        assert tokens(found["1"]) == told(prompt_of(3), 4) and found["lost"][-1].engine_lost
        os.kill(other.child.process, signal.SIGKILL)
        eventually(lambda: client.state().parts[lost].death)


def test_a_core_that_says_nothing_gets_no_requests_while_others_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_replicas, "SLOW", 1.0)
    with replicas(2) as client:
        stopped = client.cores[0].child.process
        os.kill(stopped, signal.SIGSTOP)
        try:
            eventually(lambda: client.cores[0].state().age > 1)
            for number in range(4):
                client.add(asked(str(number), prompt_of(number)))
            assert places(client) == {1: 4}
            read_all(client)
        finally:
            os.kill(stopped, signal.SIGCONT)
        eventually(lambda: client.cores[0].state().age < 1)
        client.add(asked("again", prompt_of(5)))
        assert places(client) == {0: 1}
        read_all(client)
