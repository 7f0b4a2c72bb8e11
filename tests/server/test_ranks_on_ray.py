"""`jengine serve --data-parallel-backend ray` with a real local Ray, which is an extra."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from jengine.bench.marathon.server import free_port
from tests.server.listening import until
from tests.server.test_program import COMPLETIONS, STEP, Program
from tests.server.test_several_servers import SHORT, busy_engines, read, running

pytestmark = pytest.mark.slow
# A local Ray takes a while.
START = 300.0
CORE = "jengine.assembly.processes.core_process"


def flags(*more: str) -> tuple[str, ...]:
    """Two ranks on Ray, which has a CPU for both."""
    return (
        "--data-parallel-size", "2", "--data-parallel-backend", "ray",
        "--data-parallel-options.cpus", "0.5", "--data-parallel-rpc-port", str(free_port()), *more,
    )  # fmt: skip


def assert_nothing_is_left(program: Program, seconds: float = 20.0) -> None:
    until(lambda: not program.orphans(), lambda: str(program.orphans()), seconds)


def test_ranks_on_ray_are_one_server_and_leave_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with Program(tmp_path, *flags(STEP, "0.02")) as program:
        program.wait_until_ready(START)
        assert "ray" in " ".join(word for one in program.family() for word in one.cmdline())
        clients = [program.stream(max_tokens=300) for _ in range(4)]
        until(lambda: busy_engines(program) == {"0", "1"}, lambda: program.ask("/metrics")[1])
        running(program, CORE)[0].kill()
        # Asked at once: the rank may be back before the other one has answered.
        until(lambda: '"degraded"' in program.ask("/health")[1], program.log_text)
        assert program.status(COMPLETIONS, SHORT) == 200, "the other goes on"
        answers = [read(client) for client in clients]
        failed = [answer for answer in answers if b'"error"' in answer]
        assert failed and len(failed) < 4, "only requests of the rank that is gone fail"
        assert "It is started again in 1 s." in program.log_text()
        until(lambda: program.status("/health") == 200, program.log_text, START)
        clients = [program.stream(max_tokens=300) for _ in range(4)]
        until(lambda: busy_engines(program) == {"0", "1"}, lambda: program.ask("/metrics")[1])
        assert not any(b'"error"' in read(client) for client in clients), "the rank is back"
        program.family()
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0, program.log_text()
        assert_nothing_is_left(program)
        assert "Traceback" not in program.log_text()


def test_a_rank_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with Program(tmp_path, *flags("--executor-options.unheard", "1")) as program:
        end = time.monotonic() + START
        while program.is_running and time.monotonic() < end:
            program.family()
            time.sleep(0.1)
        assert program.process.poll() == 1, program.log_text()
        assert "unheard" in program.log_text()
        assert_nothing_is_left(program)


def test_a_killed_server_leaves_nothing_on_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with Program(tmp_path, *flags("--api-server-count", "1")) as program:
        program.wait_until_ready(START)
        cores = running(program, CORE)
        assert len(cores) == 2
        program.process.kill()
        program.process.wait()
        until(lambda: not any(core.is_running() for core in cores), lambda: str(cores), 10)
        assert_nothing_is_left(program, 90)  # Ray's own processes look for its end now and then


def test_a_model_that_is_split_over_workers_is_served(tmp_path: Path) -> None:
    """The core's own devices are elsewhere: two processes on Ray run each step together."""
    pytest.importorskip("ray")
    options = {"workers": 2, "cpus": 0.5, "environment": {"JAX_PLATFORMS": "cpu", "NPROC": "16"}}
    flags = (
        "--executor", "ray", "--executor-options", json.dumps(options),
        "--tensor-parallel-size", "2", "--max-num-seqs", "2", "--max-model-len", "128",
        "--enforce-eager",
    )  # fmt: skip
    with Program(tmp_path, *flags) as program:
        program.wait_until_ready(START)
        status, answer, _ = program.ask(COMPLETIONS, SHORT)
        assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 4
        program.family()
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0, program.log_text()
        assert_nothing_is_left(program, 90)
