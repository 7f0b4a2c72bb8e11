"""Processes for what strangers send: ended over what they may not do, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from jengine.confined import errand as errands
from jengine.confined.errand import Errand, GivenUp
from jengine.confined.process_pool import ConfinedPool, NotStarted
from jengine.errors import CapacityError, RequestError
from tests.server.listening import PATIENCE, until

PROGRAM = "tests.confined.program"


def made(size: int = 1, seconds: float = 60.0) -> ConfinedPool:
    return ConfinedPool(PROGRAM, lambda: b"its job", size=size, seconds=seconds, what="the text")


@pytest.fixture
def pool() -> Iterator[ConfinedPool]:
    one = made()
    yield one
    one.close()
    assert one.pids == []


def test_it_answers_and_refuses_in_one_process_without_jax(pool: ConfinedPool) -> None:
    assert pool.pids == [], "it starts with the first message"
    assert pool.ask(b"job") == b"its job" and pool.ask(b"echo a b") == b"a b!"
    with pytest.raises(RequestError, match="not this"):
        pool.ask(b"refuse not this")
    assert pool.ask(b"echo " + b"x" * 10**7) == b"x" * 10**7 + b"!"
    assert pool.ask(b"loaded") == b"False"
    assert pool.pids == [int(pool.ask(b"who"))] and (pool.busy, pool.given_up) == (0, 0)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (b"crash", "ended the process"),
        (b"boast", "ended the process"),
        (b"allocate 2048", "takes too much memory"),
    ],
)
def test_a_message_that_is_too_much_costs_itself_alone(
    pool: ConfinedPool, asked: bytes, why: str
) -> None:
    with pytest.raises(RequestError, match=f"^the text .*{why}"):
        pool.ask(asked)
    assert pool.ask(b"echo on") == b"on!"


def test_a_message_that_takes_too_long_ends_its_process() -> None:
    pool = made(seconds=0.3)
    (first,) = [int(pool.ask(b"who"))]
    with pytest.raises(RequestError, match=r"took longer than 0\.3 seconds"):
        pool.ask(b"sleep 600")
    assert not psutil.pid_exists(first) and pool.given_up == 1
    assert int(pool.ask(b"who")) != first
    pool.close()


def test_a_process_that_has_grown_is_replaced(pool: ConfinedPool) -> None:
    first = int(pool.ask(b"who"))
    assert int.from_bytes(pool.ask(b"allocate 200"), "little") == 200 * 2**20
    until(lambda: not psutil.pid_exists(first))
    assert int(pool.ask(b"who")) != first and pool.given_up == 0


def test_a_process_that_nobody_asks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_IDLE", "0.01")
    pool = made()
    first = int(pool.ask(b"who"))
    until(lambda: not psutil.pid_exists(first))
    assert pool.ask(b"echo again") == b"again!" and pool.given_up == 0
    pool.close()


def test_a_client_that_leaves_ends_what_runs_for_it(pool: ConfinedPool) -> None:
    errand, ended = Errand(600), threading.Event()

    def work() -> None:
        errands.current.set(errand)
        with pytest.raises(GivenUp):
            pool.ask(b"sleep 600")
        ended.set()

    threading.Thread(target=work).start()
    until(lambda: pool.busy and errand._kill)
    errand.cancel()
    assert ended.wait(PATIENCE) and pool.pids == []
    with pytest.raises(GivenUp):
        errand.check()
    assert pool.ask(b"echo on") == b"on!"


def test_no_more_processes_than_places_and_an_error_for_who_waits(
    pool: ConfinedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    errand = Errand(600)

    def work() -> None:
        errands.current.set(errand)
        with pytest.raises(GivenUp):
            pool.ask(b"sleep 600")

    busy = threading.Thread(target=work)
    busy.start()
    until(lambda: pool.busy and errand._kill)
    monkeypatch.setattr("jengine.confined.process_pool.PATIENCE", 0.01)
    with pytest.raises(CapacityError, match="Try again later"):
        pool.ask(b"who")
    errand.cancel()
    busy.join(PATIENCE)


def test_a_program_that_does_not_start_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    pool = ConfinedPool("tests.confined.missing", size=1, seconds=1, what="the text")
    with pytest.raises(NotStarted, match="the log says why"):
        pool.ask(b"who")
    assert "No module named" in capfd.readouterr().err


def test_a_fork_that_drops_its_pool_leaves_the_processes() -> None:
    pools = [made()]
    pids = [pools[0].ask(b"who")]
    if not (fork := os.fork()):
        pools.clear()
        os._exit(0)
    assert os.waitpid(fork, 0)[1] == 0
    assert pools[0].ask(b"who") in pids
    pools[0].close()


def test_it_ends_with_its_parent_whatever_it_is_doing() -> None:
    code = (
        "import threading\n"
        "from tests.confined.test_pool import made\n"
        "pool = made()\n"
        "print(int(pool.ask(b'who')), flush=True)\n"
        "pool.ask(b'sleep 600')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent.stdout as said:
        child = int(said.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie")
