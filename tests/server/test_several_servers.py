"""`jengine serve --api-server-count` and ranks that join from another host, as programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from jengine.bench.marathon.server import free_port
from jengine.distributed.process_replicas import SLOW
from tests.server.listening import Client, until
from tests.server.test_program import (
    COMPLETIONS,
    SCRIPTED,
    STEP,
    Program,
    metric,
)

pytestmark = pytest.mark.slow
SHORT = {"prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def running(program: Program, module: str) -> list[psutil.Process]:
    """The processes of a program that run this module."""
    return [one for one in program.family() if module in one.cmdline()]


def api_processes(program: Program) -> list[psutil.Process]:
    return running(program, "jengine.cli.serving.api_process")


def test_three_processes_are_one_server(tmp_path: Path) -> None:
    with Program(tmp_path, "--api-server-count", "3", "--metrics-compat", "vllm") as program:
        program.wait_until_ready()
        assert len(api_processes(program)) == 3
        assert len(running(program, "jengine.assembly.processes.core_process")) == 1
        until(lambda: "Page " in program.log_text(), lambda: program.log_text())
        assert program.log_text().count("Page ") == 1, "one box for all"
        answers = {program.ask(COMPLETIONS, SHORT)[1].partition('"choices"')[2][:40]
                   for _ in range(30)}  # fmt: skip
        assert len(answers) == 1, answers
        until(
            lambda: metric(program, "generation_tokens_total") == 120,
            lambda: program.ask("/metrics")[1],
        )
        for _ in range(5):  # whichever process answers
            assert metric(program, "request_success_total") == 30
            assert metric(program, "generation_tokens_total") == 120
        names = {f"ApiServer_{index} pid=" for index in range(3)}
        assert all(name in program.log_text() for name in names)


def test_a_signal_drains_all_and_leaves_nothing(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02", "--api-server-count", "2") as program:
        program.wait_until_ready()
        clients = [program.stream(max_tokens=150) for _ in range(4)]
        program.process.send_signal(signal.SIGTERM)
        until(lambda: program.status("/health/ready") in (503, 0), lambda: "it is still ready")
        assert program.status(COMPLETIONS, SHORT) in (503, 0)
        for client in clients:
            assert b'"finish_reason":"length"' in client.read_until(b"data: [DONE]")
            client.leave()
        program.assert_ended(0)
        assert "Traceback" not in program.log_text()


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.05", "--api-server-count", "2") as program:
        client = program.wait_until_ready().stream()
        program.process.send_signal(signal.SIGTERM)
        until(lambda: program.status("/health/ready") in (503, 0), lambda: "it is still ready")
        program.process.send_signal(signal.SIGTERM)
        program.wait_until_ended(8)
        assert program.orphans() == []
        client.leave()


def test_a_killed_api_process_ends_the_server_after_the_others_requests(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02", "--api-server-count", "2") as program:
        program.wait_until_ready()
        clients = [program.stream(max_tokens=100) for _ in range(6)]
        victim = api_processes(program)[0]
        lost = {one.raddr.port for one in victim.net_connections() if one.raddr}
        victim.kill()
        for client in clients:
            whole = client.sock.getsockname()[1] not in lost
            assert (b"[DONE]" in read(client)) == whole
            client.leave()
        program.assert_ended(1)
        assert "API process 0" in program.log_text() and "SIGKILL" in program.log_text()


def read(client: Client) -> bytes:
    """Everything that comes, also from a process that is killed meanwhile."""
    try:
        return client.read_until(b"data: [DONE]")
    except ConnectionError:
        return client.got


def test_a_killed_core_ends_the_server(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02", "--api-server-count", "2") as program:
        client = program.wait_until_ready().stream()
        (core,) = running(program, "jengine.assembly.processes.core_process")
        core.kill()
        assert b'"error"' in client.read_until(b"data: [DONE]")
        program.assert_ended(1)


def test_a_stopped_and_a_killed_core_of_two_leave_the_other_to_answer(tmp_path: Path) -> None:
    flags = (STEP, "0.02", "--data-parallel-size", "2", "--stall-timeout", "1")
    with Program(tmp_path, *flags) as program:
        program.wait_until_ready()
        clients = [program.stream(max_tokens=100) for _ in range(4)]
        until(lambda: busy_engines(program) == {"0", "1"}, lambda: program.ask("/metrics")[1])
        core = running(program, "jengine.assembly.processes.core_process")[0]
        core.send_signal(signal.SIGSTOP)
        try:
            until(lambda: program.status("/health") == 503, lambda: "health stays green")
            assert json.loads(program.ask("/health")[1])["status"] == "degraded"
            until(lambda: "Current thread" in program.log_text(), lambda: "no stacks in the log")
            time.sleep(SLOW)
            assert program.status("/health/ready") == 200
            assert program.status(COMPLETIONS, SHORT) == 200
        finally:
            core.send_signal(signal.SIGCONT)
        until(lambda: program.status("/health") == 200, lambda: "it does not come back")
        assert not any(b'"error"' in read(client) for client in clients)
        clients = [program.stream(max_tokens=300) for _ in range(4)]
        core.kill()
        failed = [one for one in map(read, clients) if b'"error"' in one]
        assert failed and len(failed) < 4, "only requests of the core that is gone fail"
        assert all(b'"code":503' in one for one in failed)
        assert program.status("/health") == 503 and program.status("/health/ready") == 200
        assert program.status(COMPLETIONS, SHORT) == 200
        program.process.send_signal(signal.SIGTERM)
        program.assert_ended(0)


def test_a_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with Program(tmp_path, STEP, "0.02", "--api-server-count", "2") as program:
        program.wait_until_ready().stream()
        program.process.kill()
        program.assert_ended(-signal.SIGKILL)


def test_a_stopped_api_process_turns_health_red(tmp_path: Path) -> None:
    with Program(tmp_path, "--api-server-count", "2", "--stall-timeout", "1") as program:
        program.wait_until_ready()
        stopped = api_processes(program)[0]
        stopped.send_signal(signal.SIGSTOP)
        try:
            until(lambda: program.status("/health/ready") == 503, lambda: "health stays green")
            assert program.status("/health/live") == 200
        finally:
            stopped.send_signal(signal.SIGCONT)
        until(lambda: program.status("/health/ready") == 200, lambda: "it does not come back")


def test_an_engine_that_cannot_start_ends_all(tmp_path: Path) -> None:
    flags = ("--api-server-count", "2", "--executor-options.unheard", "1")
    with Program(tmp_path, *flags) as program:
        program.assert_ended(1, seconds=60)
        assert "unheard" in program.log_text()


def test_two_fronts_route_to_two_cores_by_prefix(tmp_path: Path) -> None:
    with Program(tmp_path, "--data-parallel-size", "2") as program:  # as many API processes
        program.wait_until_ready()
        assert len(api_processes(program)) == 2
        assert len(running(program, "jengine.assembly.processes.core_process")) == 2
        prompts = [f"{word} upon a time " * 40 for word in ("Once", "Twice", "Never", "Always")]
        for prompt in prompts * 6:
            assert program.status(COMPLETIONS, {"prompt": prompt, "max_tokens": 2}) == 200

        def share() -> float:
            hits, queries = (metric(program, f"prefix_cache_{name}_total") for name in
                             ("hits", "queries"))  # fmt: skip
            return hits / queries

        # Five of six are hits if a prompt stays in one core, four if it is in both.
        until(lambda: share() > 0.7, lambda: f"hits: {share()}")


@contextmanager
def headless(folder: Path, *flags: str, secret: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another host's cores, on this one."""
    command = [sys.executable, "-m", "jengine", "serve", "demo", "--headless", *SCRIPTED, *flags]
    with (folder / "headless.log").open("wb") as log:
        env = {**os.environ, "JENGINE_DATA_PARALLEL_SECRET": secret}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


SECRET = "a secret of sixteen bytes or more"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_rank_on_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    monkeypatch.setenv("JENGINE_DATA_PARALLEL_SECRET", SECRET)
    flags = (
        STEP, "0.02", "--data-parallel-size", "2", "--data-parallel-size-local", "1",
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(free_port()),
    )  # fmt: skip
    rest = ("--data-parallel-start-rank", "1")
    with (
        Program(tmp_path, *flags, "--api-server-count", processes) as program,
        headless(tmp_path, *flags, *rest, secret=SECRET) as other,
    ):
        program.wait_until_ready()
        clients = [program.stream(max_tokens=300) for _ in range(4)]
        until(
            lambda: busy_engines(program) == {"0", "1"},
            lambda: program.ask("/metrics")[1],
        )
        other.kill()
        lost = [read(client) for client in clients]
        failed = [answer for answer in lost if b'"error"' in answer]
        assert failed and len(failed) < 4, "only requests of the rank that is gone fail"
        assert all(b"core 1 of 2 has died" in one and b'"code":503' in one for one in failed)
        assert program.status(COMPLETIONS, SHORT) == 200, "the others go on"
        until(lambda: program.status("/health") == 503, lambda: "health stays green")
        assert json.loads(program.ask("/health")[1])["status"] == "degraded"
        assert program.status("/health/ready") == 200
        with headless(tmp_path, *flags, *rest, secret=SECRET):
            until(lambda: program.status("/health") == 200, program.log_text, 60)
            clients = [program.stream(max_tokens=300) for _ in range(4)]
            until(lambda: busy_engines(program) == {"0", "1"}, lambda: program.ask("/metrics")[1])
            assert not any(b'"error"' in read(client) for client in clients)


def busy_engines(program: Program) -> set[str]:
    """The ranks that run requests."""
    lines = program.ask("/metrics")[1].splitlines()
    return {
        line.partition('engine="')[2].partition('"')[0]
        for line in lines
        if "num_requests_running{" in line and not line.endswith(" 0.0")
    }


def test_headless_ends_with_its_front_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JENGINE_DATA_PARALLEL_SECRET", SECRET)
    flags = (
        "--data-parallel-size", "2", "--data-parallel-size-local", "1",
        "--data-parallel-address", "127.0.0.1", "--data-parallel-rpc-port", str(free_port()),
    )  # fmt: skip
    rest = ("--data-parallel-start-rank", "1")
    with Program(tmp_path, *flags) as program:
        with headless(tmp_path, *flags, *rest, secret=SECRET[::-1]) as stranger:
            assert stranger.wait(60) == 1
        assert "Is the secret the same" in (tmp_path / "headless.log").read_text()
        with headless(tmp_path, *flags, *rest, secret=SECRET) as other:
            program.wait_until_ready()
            program.process.send_signal(signal.SIGTERM)
            program.assert_ended(0)
            assert other.wait(60) == 1
        assert "has gone" in (tmp_path / "headless.log").read_text()
