"""`jengine serve` as a program: signals, death and silence of its engine, faults at the start.

Each test starts a server with a scripted engine, as users start one. Those that need a server of
their own are slow tests; the first ones share one.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jengine.bench.marathon.run import Marathon, run
from jengine.bench.marathon.server import ServerProcess
from tests.faults import SECRETS, UNPICKLED, fault_environment
from tests.server.listening import Client, until

SCRIPTED = ("--executor", "tests.server.scripted:Executor")
STEP = "--executor-options.step_seconds"
COMPLETIONS = "/v1/completions"
LONG = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "temperature": 0}
START_SECONDS = 120.0
ACCOUNTS = "jengine.scheduler.scheduler:Scheduler.commit:check@1+"


class Program(ServerProcess):
    """A server process for a test, which is killed at the end of it."""

    def __init__(self, folder: Path, *flags: str, faults: tuple[str, ...] = ()) -> None:
        env = fault_environment(folder, *faults)
        super().__init__("demo", [*SCRIPTED, *flags], folder / "server.log", env)

    def __enter__(self) -> Program:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_until_ready(self, seconds: float = START_SECONDS) -> Program:
        end = time.monotonic() + seconds
        while self.status("/health/ready") != 200:
            assert self.is_running and time.monotonic() < end, self.log_text()
            time.sleep(0.05)
        self.family()
        return self

    def status(self, path: str, body: Any = None) -> int:
        """The status of an answer; 0 if there is none."""
        return self.ask(path, body)[0]

    def ask(self, path: str, body: Any = None) -> tuple[int, str, dict[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as found:
                return found.status, found.read().decode(), lower(found.headers)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), lower(error.headers)
        except OSError as error:
            return 0, str(error), {}

    def stream(self, **more: Any) -> Client:
        """A stream that has begun."""
        client = Client(self.port).send(COMPLETIONS, {**LONG, "stream": True, **more})
        client.read_until(b"data: ")
        assert client.status == 200
        return client

    @property
    def engine(self) -> psutil.Process:
        """The process of the engine's core."""
        (found,) = self.engines()
        return found

    def assert_ended(self, status: int | None = None, seconds: float = 60.0) -> None:
        """It ends by itself, with this status or any but 0, and leaves no process."""
        found = self.wait_until_ended(seconds)
        assert (found != 0) if status is None else (found == status), self.log_text()
        until(lambda: not self.orphans(), lambda: f"left: {self.orphans()}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A server that tests leave as they found it. After every step its blocks must add up."""
    flags = (STEP, "0.01", "--stall-timeout", "1")
    with Program(tmp_path_factory.mktemp("shared"), *flags, faults=(ACCOUNTS,)) as one:
        yield one.wait_until_ready()


def lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def metric(program: Program, name: str) -> float:
    """The sum of a metric over its labels."""
    found = re.findall(rf"^\w+:{name}(?:{{[^}}]*}})? (\S+)$", program.ask("/metrics")[1], re.M)
    assert found, name
    return sum(map(float, found))


@pytest.mark.slow
def test_a_stopped_engine_turns_health_red_and_comes_back(shared: Program) -> None:
    client = shared.stream()
    shared.engine.send_signal(signal.SIGSTOP)
    try:
        until(lambda: shared.status("/health/ready") == 503, lambda: "health stays green")
        assert shared.status("/health/live") == 200
        assert json.loads(shared.ask("/health")[1])["status"] == "stalled"
        until(lambda: "Current thread" in shared.log_text(), lambda: "no stacks in the log")
    finally:
        shared.engine.send_signal(signal.SIGCONT)
    until(lambda: shared.status("/health/ready") == 200, lambda: "it does not come back")
    assert b"data: [DONE]" in client.read_until(b"data: [DONE]")
    client.leave()


@pytest.mark.slow
def test_clients_that_leave_are_gone_from_the_engine_process(shared: Program) -> None:
    streams = [shared.stream() for _ in range(3)]
    whole = Client(shared.port).send(COMPLETIONS, LONG)
    until(lambda: metric(shared, "num_requests_running") == 4, lambda: "they do not run")
    for client in (*streams, whole):
        client.leave()
    until(
        lambda: metric(shared, "num_requests_running") + metric(shared, "kv_cache_usage_perc") == 0,
        lambda: "they still run",
    )


@pytest.mark.slow
def test_metrics_have_the_same_series_whatever_users_send(shared: Program) -> None:
    def series() -> set[str]:
        lines = shared.ask("/metrics")[1].splitlines()
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    texts = [f"unique text {number}" for number in range(20)]

    def traffic() -> None:
        for text in texts:
            shared.ask(COMPLETIONS, {"prompt": text, "max_tokens": 2, "user": text, text: 1})
            shared.ask(f"/v1/models/{text.replace(' ', '-')}")
            shared.ask(COMPLETIONS, {"prompt": text, "model": text})

    traffic()
    before = series()
    asking = threading.Thread(target=traffic)
    asking.start()
    while asking.is_alive():
        assert "unique" not in shared.ask("/metrics")[1]
    asking.join()
    assert series() == before


def test_neither_process_unpickles_anything(shared: Program) -> None:
    body = {"prompt": "a", "max_tokens": 3, "logprobs": 2, "n": 2, "temperature": 1.0}
    assert shared.status(COMPLETIONS, body) == 200
    assert shared.status("/metrics") == 200
    assert UNPICKLED not in shared.log_text()


@pytest.mark.slow
def test_a_killed_engine_fails_its_requests_and_ends_the_server(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02") as program:
        client = program.wait_until_ready().stream()
        whole = Client(program.port).send(COMPLETIONS, LONG)
        program.engine.kill()
        assert b"data: [DONE]" in client.read_until(b"data: [DONE]")
        assert b'"error"' in client.got
        assert whole.status == 503
        assert program.status(COMPLETIONS, LONG) in (503, 0)
        assert program.status("/health") in (503, 0)
        program.assert_ended()
        assert "SIGKILL" in program.log_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 30])
def test_a_step_that_fails_ends_the_engine_and_says_why_in_the_log_only(
    tmp_path: Path, number: int
) -> None:
    fault = f"tests.server.scripted:Executor.submit:raise@{number}"
    with Program(tmp_path, STEP, "0.01", faults=(fault,)) as program:
        program.wait_until_ready()
        status, body, _ = program.ask(COMPLETIONS, LONG)
        assert status in (500, 503), body
        assert not any(secret in body for secret in ("0x7f31", "/secret", "sk-secret")), body
        assert SECRETS in program.log_text()
        program.assert_ended()


@pytest.mark.slow
def test_requests_fail_alone(tmp_path: Path) -> None:
    flags = ("--executor-options.not_finite", "sick", "--executor-options.no_such_token", "strange")
    fault = "jengine.server.serving.rendering:Rendering.prompt:raise@2"
    with Program(tmp_path, STEP, "0.01", *flags, faults=(fault,)) as program:
        client = program.wait_until_ready().stream()
        status, body, _ = program.ask(COMPLETIONS, {"prompt": "a", "max_tokens": 2})
        assert status == 500 and "sk-secret" not in body and SECRETS in program.log_text()
        for text in ("I am sick", "how strange"):
            status, body, _ = program.ask(COMPLETIONS, {"prompt": text, "max_tokens": 2})
            assert status == 500, body
        assert program.status(COMPLETIONS, {"prompt": "a", "max_tokens": 2}) == 200
        assert b'"error"' not in client.read_until(b"data: [DONE]")
        client.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "fault", "said"),
    [
        (["--max-model-len", "100000"], "", "max_model_len=100000"),
        (["--executor-options.unheard", "1"], "", "unheard"),
        ([], "tests.server.scripted:Executor.start:raise@1", "a fault of the test"),
        ([], "tests.server.scripted:Executor.start:kill@1", "SIGKILL"),
        ([], "tests.server.scripted:Executor.start:exit@1", "status 3"),
    ],
)
def test_a_start_that_fails_ends_with_one_line(
    tmp_path: Path, flags: list[str], fault: str, said: str
) -> None:
    if "max_model_len" in said:
        flags = [*flags, "--executor", "local"]
    with Program(tmp_path, *flags, faults=(fault,) if fault else ()) as program:
        program.assert_ended(seconds=60)
        last = program.log_text().strip().splitlines()[-1]
        assert any(said in line for line in program.log_text().splitlines()[-6:]), last


@pytest.mark.slow
def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    program = Program(tmp_path)
    with socket.create_server(("127.0.0.1", program.port)), program:
        program.assert_ended(1, seconds=60)
        assert "cannot listen there" in program.log_text()
        assert "Traceback" not in program.log_text()


@pytest.mark.slow
def test_sigterm_while_idle_ends_at_once(tmp_path: Path) -> None:
    with Program(tmp_path) as program:
        program.wait_until_ready()
        program.process.send_signal(signal.SIGTERM)
        program.assert_ended(0, seconds=60)
        assert "Traceback" not in program.log_text()


@pytest.mark.slow
def test_sigterm_while_it_starts(tmp_path: Path) -> None:
    with Program(tmp_path, "--executor-options.start_seconds", "600") as program:
        until(lambda: program.status("/health/live") == 200, lambda: program.log_text())
        assert program.status("/health/ready") == 503
        assert program.status(COMPLETIONS, LONG) == 503
        program.family()
        program.process.send_signal(signal.SIGTERM)
        program.assert_ended(0, seconds=60)


@pytest.mark.slow
def test_sigterm_while_busy_drains_and_refuses_what_is_new(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02") as program:
        client = program.wait_until_ready().stream(max_tokens=150)
        program.process.send_signal(signal.SIGTERM)
        until(lambda: program.status("/health/ready") == 503, lambda: "it is still ready")
        status, _, headers = program.ask(COMPLETIONS, LONG)
        assert status == 503 and "retry-after" in headers
        assert program.status("/health/live") == 200
        assert b'"error"' not in client.read_until(b"data: [DONE]")
        assert client.got.count(b"data: ") > 100 and b'"finish_reason":"length"' in client.got
        client.leave()
        program.assert_ended(0)


@pytest.mark.slow
@pytest.mark.parametrize("timeout", ["0", "0.5"])
def test_what_does_not_finish_in_time_gets_a_last_chunk(tmp_path: Path, timeout: str) -> None:
    with Program(tmp_path, STEP, "0.02", "--shutdown-timeout", timeout) as program:
        client = program.wait_until_ready().stream()
        program.process.send_signal(signal.SIGTERM)
        assert b"data: [DONE]" in client.read_until(b"data: [DONE]")
        assert b'"finish_reason":"abort"' in client.got
        client.leave()
        program.assert_ended(0)


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_wait(tmp_path: Path, second: signal.Signals) -> None:
    with Program(tmp_path, STEP, "0.05") as program:
        client = program.wait_until_ready().stream()
        program.process.send_signal(signal.SIGTERM)
        until(lambda: program.status("/health/ready") == 503, lambda: "it is still ready")
        program.process.send_signal(second)
        program.wait_until_ended(5)
        assert program.orphans() == []
        client.leave()


@pytest.mark.slow
def test_a_killed_server_leaves_no_engine(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02") as program:
        program.wait_until_ready().stream()
        program.process.kill()
        program.assert_ended(-signal.SIGKILL)


@pytest.mark.slow
def test_two_thousand_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    """A short soak: `python -m jengine.bench.marathon --requests 10000` is the long one."""
    flags = (*SCRIPTED, "--executor-options.checks", "false")
    marathon = Marathon(model="demo", flags=flags, requests=2000, clients=16)
    result = asyncio.run(run(marathon, tmp_path / "log"))
    assert result["failed"] == [] and result["requests"] == 2000, result
    grown = result["resident_mb"][-1] - result["resident_mb"][len(result["resident_mb"]) // 2]
    assert grown < 25, result["resident_mb"]
