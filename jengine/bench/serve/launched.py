"""Starts servers for a benchmark, jengine's or vLLM's, each in a separate process.

In: a model and settings. Out: the URL of a server that answers. What it says goes to a file, whose
end is shown if it fails and, now and then, while it starts.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import IO

from jengine.client.address import Address
from jengine.client.errors import ServerFailed
from jengine.client.server import Server
from jengine.errors import CapacityError, ConfigError

logger = logging.getLogger(__name__)
# Loading and compiling a model may take long.
START_SECONDS = 900.0
# Seconds after which it is said, again and again, that a server is still starting.
PATIENCE = 30.0
STOP_SECONDS = 30.0
SHOWN_LINES = 12
MOST_READ = 16 * 1024
# As in peers/vllm_peer.py: 2 GB of cache on a CPU, nothing fetched, nothing reported.
VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
NOTHING: Mapping[str, str] = MappingProxyType({})


@contextmanager
def our_server(model: str, words: Sequence[str]) -> Iterator[str]:
    """Run `jengine serve MODEL` with these flags."""
    command = [sys.executable, "-m", "jengine", "serve", model, *words]
    with running(command, "jengine serve") as url:
        yield url


@contextmanager
def vllm_server(model: str, words: Sequence[str], python: str | None) -> Iterator[str]:
    """Run vLLM's server with the Python that has it installed."""
    program = "vllm.entrypoints.openai.api_server"
    command = [python or sys.executable, "-m", program, "--model", model, *words]
    with running(command, "vllm serve", VLLM_ENVIRONMENT) as url:
        yield url


@contextmanager
def running(
    command: Sequence[str], name: str, environment: Mapping[str, str] = NOTHING
) -> Iterator[str]:
    """Run a server for the duration of the block; yields its URL. Environment variables already set
    are kept."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as said:
        try:
            process = subprocess.Popen(  # noqa: S603 - programs that the user named
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdout=said,
                stderr=said,
                env={**environment, **os.environ},
            )
        except OSError as error:
            raise ConfigError(f"{name}: {command[0]} cannot be run: {error}.") from error
        try:
            with orderly_end():
                wait_until_it_answers(url, process, name, said)
                yield url
        finally:
            stop(process)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Inside the block SIGTERM raises, so that started servers are stopped too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def free_port() -> int:
    """A free TCP port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_until_it_answers(
    url: str, process: subprocess.Popen[bytes], name: str, said: IO[str]
) -> None:
    """Poll the health route, which needs no API key, until it succeeds."""
    server, began = Server(Address.of(url)), time.monotonic()
    end, told = began + START_SECONDS, began
    while True:
        try:
            server.text("/health")
            return
        except (ServerFailed, CapacityError) as error:
            last = error
        if process.poll() is not None:
            raise ServerFailed(f"{name} ended with status {process.returncode}: {end_of(said)}")
        now = time.monotonic()
        if now - told > PATIENCE:
            told = now
            logger.warning("%s has been starting for %d s: %s", name, now - began, end_of(said, 1))
        if now > end:
            raise ServerFailed(f"{name} was not ready in {START_SECONDS:.0f} s: {last}")
        time.sleep(0.2)


def end_of(said: IO[str], lines: int = SHOWN_LINES) -> str:
    """The last lines of a process's output; its write position is kept."""
    text = os.pread(said.fileno(), MOST_READ, max(os.fstat(said.fileno()).st_size - MOST_READ, 0))
    shown = text.decode(errors="replace").strip().splitlines()[-lines:]
    return " / ".join(shown) or "no message"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Terminate the process, and kill it if it does not exit."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
