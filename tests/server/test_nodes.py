"""`jengine serve` over two nodes, on this machine: two processes share each layer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jengine.bench.marathon.server import ServerProcess, free_port
from tests.server.listening import Client, until
from tests.server.test_program import COMPLETIONS, Program, metric

pytestmark = pytest.mark.slow
START = 300.0
# Collectives need threads of their own, however few cores there are.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "NPROC": "16"}
SIZES = (
    "--max-num-seqs", "2", "--max-model-len", "512",
    "--num-gpu-blocks-override", "80", "--enforce-eager", "--multihost.silence", "100",
)  # fmt: skip
GREEDY = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
ENDLESS = {**GREEDY, "max_tokens": 480}


class TwoNodes(Program):
    """The server on node 0; node 1 is started beside it."""

    def __init__(self, folder: Path, *flags: str, split: str = "tensor") -> None:
        where = ("--nnodes", "2", "--master-port", str(free_port()))
        self.flags = [*where, f"--{split}-parallel-size", "2", *SIZES, *flags]
        env = {**os.environ, **ENVIRONMENT}
        ServerProcess.__init__(self, "demo", self.flags, folder / "server.log", env)
        self.node_log = folder / "node.log"

    @contextmanager
    def node(self) -> Iterator[subprocess.Popen[bytes]]:
        """Node 1, which is killed at the end."""
        command = [sys.executable, "-m", "jengine", "serve", "demo", "--headless", *self.flags]
        with self.node_log.open("wb") as log:
            node = subprocess.Popen(
                [*command, "--node-rank", "1"], stdout=log, stderr=log, env=self.env
            )
            try:
                yield node
            finally:
                node.kill()
                node.wait()

    def wait_until_free(self) -> None:
        """Nothing runs, and no block is held."""
        until(
            lambda: metric(self, "num_requests_running") + metric(self, "kv_cache_usage_perc") == 0,
            lambda: self.ask("/metrics")[1],
        )


def text_of(answer: str) -> str:
    return json.loads(answer)["choices"][0]["text"]


def streamed_text(client: Client) -> str:
    """The text of a stream that has ended."""
    body = client.read_until(b"data: [DONE]")
    lines = [line for line in body.decode().splitlines() if line.startswith("data: {")]
    events: list[Any] = [json.loads(line.removeprefix("data: ")) for line in lines]
    return "".join(event["choices"][0]["text"] for event in events)


@pytest.mark.parametrize("split", ["tensor", "pipeline"])
def test_two_nodes_answer_as_one_and_end_together(tmp_path: Path, split: str) -> None:
    with TwoNodes(tmp_path, split=split) as program, program.node() as node:
        program.wait_until_ready(START)
        status, whole, _ = program.ask(COMPLETIONS, GREEDY)
        assert status == 200, whole
        assert text_of(whole) == ", a shy girl named Kate lived in a big"  # as one process says it
        client = Client(program.port).send(COMPLETIONS, {**GREEDY, "stream": True})
        assert streamed_text(client) == text_of(whole)
        client.leave()
        choice = {"structured_outputs": {"choice": ["yes", "no"]}, "ignore_eos": False}
        assert text_of(program.ask(COMPLETIONS, {**GREEDY, **choice})[1]) in ("yes", "no")
        left = program.stream(**ENDLESS)
        until(lambda: metric(program, "num_requests_running") == 1, lambda: "it does not run")
        left.leave()
        program.wait_until_free()
        lost = program.stream(**ENDLESS)
        node.kill()
        assert b'"error"' in lost.read_until(b"data: [DONE]")
        program.assert_ended(1, 60)
        assert f"process 1 on {socket.gethostname()} was lost" in program.log_text()


def test_a_node_ends_with_the_server_and_says_why(tmp_path: Path) -> None:
    with TwoNodes(tmp_path) as program, program.node() as node:
        program.wait_until_ready(START)
        program.process.send_signal(signal.SIGTERM)
        program.assert_ended(0, 60)
        assert node.wait(60) == 1
        assert (
            f"This node ends: process 0 on {socket.gethostname()} has left"
            in program.node_log.read_text()
        )


def test_a_node_ends_with_a_server_that_is_killed_and_a_server_with_its_node(
    tmp_path: Path,
) -> None:
    with TwoNodes(tmp_path) as program, program.node() as node:
        program.wait_until_ready(START)
        program.process.kill()
        assert node.wait(60) != 0
        assert f"process 0 on {socket.gethostname()} was lost" in program.node_log.read_text()
    with TwoNodes(tmp_path) as program, program.node() as node:
        program.wait_until_ready(START)
        node.send_signal(signal.SIGTERM)
        assert node.wait(60) == 0
        program.assert_ended(1, 60)


def test_nodes_that_differ_or_do_not_come_are_named(tmp_path: Path) -> None:
    with TwoNodes(tmp_path) as program:
        program.flags += ["--max-num-seqs", "4"]
        with program.node() as node:
            program.assert_ended(1, START)
            assert node.wait(60) != 0
        assert "process 1 differs from process 0" in program.log_text()
    with TwoNodes(tmp_path, "--multihost.meet", "2") as program:
        program.assert_ended(1, 60)
        assert "ends: node 0 of 2 did not meet the others" in program.log_text()
