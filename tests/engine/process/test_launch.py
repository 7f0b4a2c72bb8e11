"""A core in a child process: its start, and the end of either side."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from jengine.engine.process.launch import launch
from jengine.engine.process.to_front import Progress
from jengine.engine.questions import AskStats, CallWorkers, Settle
from jengine.errors import ConfigError, EngineDead
from jengine.executor.calls import Outcome
from jengine.grammar.shared_tokenizer import data_of
from jengine.plan import RowSampling
from tests.engine.process.cores import PROGRAM, child_core, eventually, read_all, tokens
from tests.engine.process.scripted_core import Settings
from tests.engine.scripted import told
from tests.engine.test_client import PROMPT, wire
from tests.grammar.letters import EOS, regex
from tests.marks import slow
from tests.server.serving import letters


def start(**settings: object):
    return launch(PROGRAM, msgspec.msgpack.encode(msgspec.convert(settings, Settings)))


class Clock:
    """Hundredths of a second in which this process ran: it may be stopped for a while."""

    def __init__(self) -> None:
        self.now = 0
        threading.Thread(target=self._tick, daemon=True).start()

    def _tick(self) -> None:
        while True:
            time.sleep(0.01)
            self.now += 1


def is_gone(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_whole_life_of_a_core(caplog: pytest.LogCaptureFixture) -> None:
    told_progress: list[Progress] = []
    client = start()
    folder = Path(client.address.removeprefix("ipc://")).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    try:
        with caplog.at_level(logging.WARNING, "jengine"):
            ready = client.wait_until_ready(told_progress.append, seconds=60)
            eventually(lambda: "the core speaks" in caplog.text)
        (line,) = [one for one in caplog.records if one.name == "jengine.test"]
        assert (line.process, line.processName) == (ready.process, "EngineCore")
        assert line.filename == "scripted_core.py"
        assert ready.process == client.child.process != os.getpid()
        assert os.getpgid(ready.process) == ready.process, "a process group of its own"
        assert ready.model.config.vocab_size == 97
        client.add(wire("a", max_tokens=6))
        assert tokens(read_all(client)["a"]) == told(PROMPT, 6)
    finally:
        client.shutdown()
    assert is_gone(ready.process) and not folder.exists()
    client.shutdown()
    with pytest.raises(EngineDead, match="was shut down"):
        client.add(wire("b"))
    with pytest.raises(EngineDead, match="was shut down"):
        client.outputs()


def test_progress_is_told_with_an_estimate() -> None:
    stages: list[Progress] = []
    client = start(start="slow")

    def wait() -> None:
        with pytest.raises(EngineDead):
            client.wait_until_ready(stages.append)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: any(one.total for one in stages), 60)
    client.shutdown()
    thread.join()
    loading = next(one for one in stages if one.total)
    assert (loading.stage, loading.done, loading.seconds_left) == ("Loading weights", 1, 6.0)


def ruled(text: str) -> RowSampling:
    return RowSampling(grammar=regex(text), stop_ids=[EOS])


def test_grammars_of_a_core_are_over_the_tokenizer_that_its_front_tells() -> None:
    with child_core(grammars=True) as client:
        client.add(replace(wire("before"), sampling=ruled("y")))
        (refused,) = read_all(client)["before"]
        assert "no front of this core has told its tokenizer" in str(refused.message)
        client.tell_tokenizer(data_of(letters()))
        client.add(replace(wire("after"), sampling=ruled("(yes|no)!")))
        answer = tokens(read_all(client)["after"])
        assert letters().decode(answer[: answer.index(EOS)]) in ("yes!", "no!")
        (answered,) = client.ask(CallWorkers("modules", msgspec.msgpack.encode({})))
        modules = msgspec.msgpack.decode(msgspec.msgpack.decode(answered, type=Outcome).value)
        assert "llguidance" in modules and "transformers" not in modules


def test_a_silent_start_is_given_up() -> None:
    client = start(start="slow")
    with pytest.raises(EngineDead, match=r"has said nothing for 0\.5 s"):
        client.wait_until_ready(seconds=0.5)
    client.shutdown()


def test_an_error_at_the_start_arrives_with_its_class_and_text() -> None:
    client = start(start="fail")
    with pytest.raises(ConfigError, match=r"^told not to start$"):
        client.wait_until_ready(seconds=60)
    client.shutdown()
    assert is_gone(client.child.process)


def test_a_core_that_crashes_at_the_start_is_noticed() -> None:
    client = start(start="crash")
    with pytest.raises(EngineDead, match="has ended with status 3"):
        client.wait_until_ready(seconds=60)
    client.shutdown()


def test_a_killed_core_fails_everything_that_waits_within_a_second() -> None:
    with child_core(step_seconds=0.005) as client:
        found: dict[str, int] = {}
        clock = Clock()

        def failing(name: str, call) -> threading.Thread:
            def run() -> None:
                with pytest.raises(EngineDead, match="killed by SIGKILL"):
                    while True:
                        call()
                found[name] = clock.now

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        client.when_dead(lambda _: found.setdefault("told", clock.now))
        client.add(wire("a", max_tokens=900))
        threads = [
            failing("reader", client.outputs),
            failing("question", partial(client.ask, AskStats())),
        ]
        time.sleep(0.05)
        os.kill(client.child.process, signal.SIGKILL)
        began = clock.now
        for thread in threads:
            thread.join(60)
        assert set(found) == {"reader", "question", "told"}
        assert max(found.values()) - began < 1000, "hundredths of a second, on a busy machine"
        for call in (
            client.check_alive,
            partial(client.ask, AskStats()),
            partial(client.ask, Settle()),
            lambda: client.add(wire("b")),
        ):
            with pytest.raises(EngineDead, match="killed by SIGKILL"):
                call()


def test_a_stopped_core_is_silent_but_not_dead() -> None:
    with child_core(step_seconds=0.005) as client:
        client.add(wire("a", max_tokens=100))
        got = client.outputs()
        os.kill(client.child.process, signal.SIGSTOP)
        try:
            eventually(lambda: client.state().age > 1.0)
            client.check_alive()
        finally:
            os.kill(client.child.process, signal.SIGCONT)
        eventually(lambda: client.state().age < 0.6)
        got += read_all(client)["a"]
        assert tokens(got) == told(PROMPT, 100)


def test_a_step_that_does_not_end_is_seen_while_the_process_lives() -> None:
    with child_core(step_seconds=1.2) as client:
        client.add(wire("a", max_tokens=900))

        def reports_meanwhile() -> bool:
            state = client.state()
            return state.stepping > 0.6 and state.age < 0.6

        eventually(reports_meanwhile)
        client.abort("a")
        eventually(lambda: client.state().stepping == 0.0)


def test_a_stuck_core_is_killed_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jengine.confined.owned_process.END_SECONDS", 0.2)
    with child_core() as client:
        os.kill(client.child.process, signal.SIGSTOP)
    assert is_gone(client.child.process)


def test_what_the_core_started_ends_with_it() -> None:
    with child_core(start="children") as client:
        (grandchild,) = psutil.Process(client.child.process).children()
        os.kill(client.child.process, signal.SIGKILL)
        eventually(lambda: is_gone(grandchild.pid))


def test_signals_from_the_terminal_and_the_supervisor_are_the_fronts() -> None:
    with child_core() as client:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.child.process, number)
        client.add(wire("a", max_tokens=2))
        assert tokens(read_all(client)["a"]) == told(PROMPT, 2)


FRONT = """
import msgspec, sys, time
from jengine.engine.process.launch import launch
client = launch({program!r}, msgspec.msgpack.encode(dict(step_seconds=0.01)))
ready = client.wait_until_ready(seconds=60)
print(ready.process, client.address, flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "leaves_folder"),
    [("time.sleep(600)", True), *slow(("raise SystemExit(0)", False), ("1 / 0", False))],
    ids=["killed", "exits", "fails"],
)
def test_the_end_of_the_front_leaves_no_orphan(then: str, leaves_folder: bool) -> None:
    front = subprocess.Popen(
        [sys.executable, "-c", FRONT.format(program=PROGRAM, then=then)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert front.stdout is not None
    process, address = front.stdout.readline().split()
    folder = Path(address.removeprefix("ipc://")).parent
    if leaves_folder:
        os.kill(int(process), signal.SIGSTOP)  # even a core that stands still
        front.kill()
    front.wait(60)
    eventually(lambda: is_gone(int(process)))
    if leaves_folder:
        start(start="crash").shutdown()  # removes what others have left
    assert not folder.exists()


FORK = """
import os
from jengine.engine.questions import Settle
child = os.fork()
if not child:
    raise SystemExit(0)
print(os.waitpid(child, 0)[1], flush=True)
client.ask(Settle())
client.shutdown()
print("settled")
"""


def test_the_exit_of_a_forked_child_leaves_it_alone() -> None:
    code = FRONT.format(program=PROGRAM, then=FORK)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[1:3] == ["0", "settled"], done.stderr


def test_a_forked_child_may_not_use_it() -> None:
    with child_core() as client:
        process = client.child.process
        child = os.fork()
        if child == 0:
            status = 1
            try:
                client.shutdown()  # does nothing
                client.outputs()
            except EngineDead as error:
                status = 0 if "'spawn'" in str(error) else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert not is_gone(process)
        client.add(wire("a", max_tokens=1))
        assert read_all(client)["a"]


def test_stacks_can_be_dumped(capfd: pytest.CaptureFixture[str]) -> None:
    with child_core() as client:
        client.child.dump_stacks()
        seen = ""

        def dumped() -> bool:
            nonlocal seen
            seen += capfd.readouterr().err
            return "step_loop.py" in seen

        eventually(dumped)
