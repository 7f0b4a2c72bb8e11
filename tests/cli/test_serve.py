"""`jengine serve`: its flags, and the program itself in front of a scripted engine process."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import msgspec
import pytest
from starlette.applications import Starlette

from jengine.assembly.processes.deployment import Deployment, deployment_of
from jengine.assembly.processes.engine_process import start_engine_process
from jengine.assembly.settings.args import EngineArgs
from jengine.bench.marathon.server import free_port
from jengine.cli import serve
from jengine.cli.main import command_parser, main
from jengine.cli.serving import headless, one_process
from jengine.cli.serving.flags import server_settings
from jengine.cli.serving.several_processes import engine_settings
from jengine.cli.terminal import Terminal
from jengine.engine.process.to_front import Progress
from jengine.errors import ConfigError
from jengine.server.run import uvicorn_config
from jengine.server.settings import ServerSettings

ROOT = Path(__file__).parent.parent.parent
RUNNING = re.compile(r"Uvicorn running on (http://\S+)")


def settings_of(*words: str, **environment: str) -> ServerSettings:
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    arguments = command_parser("serve", serve, terminal).parse(["demo", *words])  # type: ignore[arg-type]
    return server_settings(arguments, environment)


def test_usual_settings() -> None:
    settings = settings_of()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000), "this machine alone"
    assert settings.served_model_name == ("demo",) and settings.api_key == ()
    assert settings.shutdown_timeout == 30 and settings.queue_limit(8) == 4096
    assert settings.queue_limit(4096) == 4 * 4096 + 256


def test_flags_have_vllms_names() -> None:
    settings = settings_of(
        "--host", "0.0.0.0", "--port", "0", "--api-key", "a", "b", "--served-model-name", "one",
        "two", "--allowed-origins", '["*"]', "--tool-call-parser", "hermes",
        "--enable-auto-tool-choice", "--reasoning-parser", "qwen3", "--max-num-queued-reqs", "7",
        "--shutdown_timeout", "2", "--default-chat-template-kwargs", '{"enable_thinking": false}',
        "--disable-log-requests", "--h11-max-header-count", "50", "--return-tokens-as-token-ids",
        "--root-path", "/x", "--max-log-len", "9", "--no-enable-log-deltas", "--ssl-cert-reqs", "2",
        "--disable-access-log-for-endpoints", "/health,/metrics", "--enable-flash-late-interaction",
    )  # fmt: skip
    assert settings.ssl_cert_reqs == 2
    assert settings.host == "0.0.0.0" and settings.port == 0
    assert settings.api_key == ("a", "b") and settings.served_model_name == ("one", "two")
    assert settings.allowed_origins == ("*",) and settings.queue_limit(8) == 7
    assert settings.enable_auto_tool_choice and settings.tool_call_parser == "hermes"
    assert settings.max_header_count == 50
    assert settings.shutdown_timeout == 2.0 and settings.return_tokens_as_token_ids
    assert settings.default_chat_template_kwargs == {"enable_thinking": False}


def test_paths_are_left_out_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("uvicorn.access")
    uvicorn_config(Starlette(), settings_of("--disable-access-log-for-endpoints", "/health,/load"))
    try:
        with caplog.at_level(logging.INFO, "uvicorn.access"):
            for path in ("/health", "/health?a=1", "/healthy", "/v1/models"):
                log.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:1", "GET", path, "1.1", 200)
    finally:
        log.filters.clear()
    assert [one.args[2] for one in caplog.records if isinstance(one.args, tuple)] == [
        "/healthy", "/v1/models",
    ]  # fmt: skip


def arguments_of(*words: str) -> argparse.Namespace:
    terminal = Terminal(io.StringIO(), io.StringIO(), io.StringIO())
    return command_parser("serve", serve, terminal).parse(["demo", *words])  # type: ignore[arg-type]


def test_flags_of_vllm_that_change_no_answer_are_taken() -> None:
    arguments = arguments_of(
        "--mm-processor-cache-gb", "0", "--enable-dbo", "--cudagraph-capture-sizes", "1", "2",
        "--attention-backend", "FLASH_ATTN", "--no-enable-mfu-metrics",
    )  # fmt: skip
    assert serve.engine_args(arguments) == serve.engine_args(arguments_of())
    for word, setting in (
        ("--no-async-scheduling", {"overlap": False}),
        ("--async-scheduling", {"overlap": True}),
        ("--no-use-tqdm-on-load", {"show_progress": False}),
        ("--language-model-only", {"limit_mm_per_prompt": {"image": 0, "video": 0}}),
        ("--override-generation-config.top_k=3", {"override_generation_config": {"top_k": 3}}),
    ):
        found = serve.engine_args(arguments_of(word))
        assert {name: getattr(found, name) for name in setting} == setting
    drafts = serve.engine_args(arguments_of("--spec-method", "ngram", "--spec-tokens", "3"))
    assert drafts.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}


def processes(*words: str) -> int:
    arguments = arguments_of(*words)
    args = serve.engine_args(arguments)
    cores = args.ranks.size if args.replicas_in_processes else 1
    return serve.api_processes(arguments, args.nodes, cores)


def test_how_many_processes_serve_http() -> None:
    assert processes() == 1
    assert processes("--api-server-count", "3") == 3
    assert processes("-asc", "2") == 2
    assert processes("--headless") == 0
    with pytest.raises(ConfigError, match="cannot be used with --headless"):
        processes("--headless", "--api-server-count", "2")
    with pytest.raises(ConfigError, match="expected at least 1"):
        processes("--api-server-count", "0")


def test_replicas_are_processes_with_as_many_api_processes() -> None:
    two = ("--data-parallel-size", "2")
    assert serve.engine_args(arguments_of(*two)).replicas_in_processes
    assert processes(*two) == 2
    assert processes(*two, "--api-server-count", "1") == 1
    assert processes(*two, "--data-parallel-backend", "local") == 1
    over_hosts = serve.engine_args(arguments_of(*two, "--executor", "multihost"))
    assert not over_hosts.replicas_in_processes


def test_ranks_of_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JENGINE_DATA_PARALLEL_SECRET", "sixteen bytes at least")
    args = serve.engine_args(
        arguments_of(
            "--data-parallel-size", "4", "--data-parallel-size-local", "2",
            "--data-parallel-start-rank", "2", "--data-parallel-address", "127.0.0.1",
            "--data-parallel-rpc-port", "5000",
        )
    )  # fmt: skip
    assert (args.ranks.local, args.data_parallel_rpc_port) == (range(2, 4), 5000)
    assert Deployment(args, Path("demo")).secret == b"sixteen bytes at least"
    monkeypatch.delenv("JENGINE_DATA_PARALLEL_SECRET")
    with pytest.raises(ConfigError, match="JENGINE_DATA_PARALLEL_SECRET"):
        _ = Deployment(serve.engine_args(arguments_of()), Path("demo")).secret
    with pytest.raises(ConfigError, match="expected some ranks here"):
        headless.serve_cores(serve.engine_args(arguments_of("--data-parallel-size", "2")))


def test_ranks_on_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    two = ("--data-parallel-size", "2", "--data-parallel-backend", "ray")
    args = serve.engine_args(arguments_of(*two, "--data-parallel-options.cpus", "0.5"))
    assert args.replicas_in_processes and args.ranks == (2, range(0))
    assert args.data_parallel_options == {"cpus": 0.5}
    secrets = [Deployment(one, Path("demo")).secret for one in (args, replace(args, seed=1))]
    assert len(secrets[0]) >= 32 and secrets[1] == secrets[0]
    assert processes(*two) == 2
    for more, complaint in (
        (("--data-parallel-size-local", "1"), "Ray chooses where ranks run"),
        (("--data-parallel-size", "1"), "expected at least 2"),
        (("--data-parallel-options.workers", "2"), "one worker for each rank"),
        (("--data-parallel-options.cpu", "2"), r"data_parallel_options has no key 'cpu'.*'cpus'"),
        (("--data-parallel-backend", "mp", "--data-parallel-options.cpus", "2"), "expected 'ray'"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            serve.engine_args(arguments_of(*two, *more))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'jengine\[ray\]'"):
        start_engine_process(replace(args, data_parallel_rpc_port=free_port()))


def test_an_api_process_gets_what_the_flags_said() -> None:
    settings = settings_of("--api-key", "a", "b", "--allowed-origins", '["*"]')
    sent = msgspec.msgpack.encode(msgspec.to_builtins(settings))
    assert msgspec.convert(msgspec.msgpack.decode(sent), ServerSettings) == settings
    args = serve.engine_args(arguments_of("--max-model-len", "1k", "--dtype", "float32"))
    first, second = (engine_settings(deployment_of(args), index) for index in range(2))
    found = EngineArgs.checked("test", **msgspec.msgpack.decode(msgspec.msgpack.encode(first)))
    assert (found.max_model_len, found.dtype) == (1000, "float32")
    assert (first["disable_log_stats"], second["disable_log_stats"]) == (False, True)


def test_keys_may_be_in_the_environment() -> None:
    assert settings_of(JENGINE_API_KEY="k", JENGINE_ADMIN_KEY="a").admin_key == ("a",)
    assert settings_of(VLLM_API_KEY="k").api_key == ("k",)
    assert settings_of("--api-key", "flag", JENGINE_API_KEY="k").api_key == ("flag",)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--enable-auto-tool-choice"], "needs --tool-call-parser"),
        (["--tool-call-parser", "hermez"], "Did you mean 'hermes'"),
        (["--reasoning-parser", "none"], "reasoning_parser"),
        (["--ssl-keyfile", "x"], "--ssl-certfile"),
        (["--shutdown-timeout", "-1"], "at least 0"),
    ],
)
def test_settings_that_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        settings_of(*words)


def test_a_port_in_use_is_told_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = io.StringIO()
        terminal = Terminal(io.StringIO(), io.StringIO(), error)
        assert main(["serve", "demo", "--port", port], terminal=terminal) == 1
        assert f"--port {port}: cannot listen there" in error.getvalue()


def test_progress_in_words() -> None:
    assert one_process.in_words(Progress("Loading weights")) == "Loading weights"
    words = one_process.in_words(Progress("Compiling", 2, 8, "programs", seconds=10))
    assert words == "Compiling: 2 of 8 programs, about 30 s left"


def test_an_open_door_is_told(caplog: pytest.LogCaptureFixture) -> None:
    serve.warn_if_open(ServerSettings(host="0.0.0.0"))
    assert "without --api-key" in caplog.text
    caplog.clear()
    for closed in ({"host": "0.0.0.0", "api_key": ("k",)}, {}, {"host": "::", "uds": "/tmp/x"}):
        serve.warn_if_open(ServerSettings(**closed))  # type: ignore[arg-type]
    assert not caplog.text


class Serving:
    """A server process, its log, and its URL once it takes requests."""

    def __init__(self, *flags: str) -> None:
        words = [
            "serve", "demo", "--port", "0", "--executor", "tests.server.scripted:Executor",
            "--max-model-len", "512", "--max-num-seqs", "8", *flags,
        ]  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jengine", *words], cwd=ROOT, text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self.log = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line
            if found := RUNNING.search(line):
                self.url = found[1]
                break
        else:
            raise AssertionError(self.log)
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line

    def ask(self, **body: Any) -> Any:
        """An open response to a request for a completion."""
        data = json.dumps({"prompt": "hello", "temperature": 0, **body}).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + "/v1/completions", data, head)
        return urllib.request.urlopen(request, timeout=60)

    def wait_for(self, words: str) -> None:
        """Return when the log has these words."""
        end = time.monotonic() + 60
        while words not in self.log:
            assert time.monotonic() < end, self.log
            time.sleep(0.01)

    def end(self) -> int:
        """The exit status."""
        status = self.process.wait(60)
        self._reading.join()
        return status


@contextmanager
def server(*flags: str) -> Iterator[Serving]:
    one = Serving(*flags)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_a_signal_lets_open_requests_finish_and_refuses_new_ones() -> None:
    with server("--executor-options.step_seconds", "0.01") as one:
        stream = one.ask(stream=True, max_tokens=150, ignore_eos=True)
        first = stream.readline()
        one.process.send_signal(signal.SIGTERM)
        one.wait_for("shutting down")
        with pytest.raises(HTTPError) as refused:
            one.ask(max_tokens=1)
        assert refused.value.code == 503 and refused.value.headers["Retry-After"]
        lines = [line for line in [first, *stream.read().split(b"\n")] if line.startswith(b"data")]
        assert lines[-1] == b"data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert one.end() == 0
    assert "Application startup complete." in one.log and "KV cache" in one.log
    assert "API       http://127.0.0.1:" in one.log


@pytest.mark.slow
def test_a_second_signal_ends_everything_at_once() -> None:
    with server("--executor-options.step_seconds", "0.05") as one:
        stream = one.ask(stream=True, max_tokens=400, ignore_eos=True)
        stream.readline()
        one.process.send_signal(signal.SIGINT)
        one.wait_for("shutting down")
        one.process.send_signal(signal.SIGINT)
        assert one.end() == 0
