"""Blocks in a folder or another engine, of which each of several real processes has a piece."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jengine import SamplingParams
from tests.api.engines import answers, tiny_engine
from tests.models.tiny_models import write_tiny_native
from tests.multihost.launch import free_port, launched
from tests.multihost.program import GREEDY, OFFLOADED, in_turn
from tests.multihost.test_multihost import NAMED_WITHIN, SECONDS, said

pytestmark = pytest.mark.slow
CACHED = [96, 64, 96, 80]  # of the prompts, all whole blocks before their last tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("produced")
    sizes = {"max_position_embeddings": 1024, "vocab_size": 128}
    return write_tiny_native(base / "llama", "llama", **sizes)


@pytest.fixture(scope="module")
def produced(model: Path) -> tuple[Path, dict[str, Any]]:
    """A model, beside it the blocks that two processes have stored, and what they answered."""
    with tiny_engine(model, max_model_len=256) as llm:
        plain = in_turn(llm, OFFLOADED)
    found = said("producing", model)
    assert found["tokens"] == plain["tokens"] and found["cached"] == [0] * 4
    return model, plain


@pytest.fixture
def folder(produced: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of the model and the blocks, to be damaged."""
    shutil.copytree(produced[0].parent, tmp_path / "copy")
    return tmp_path / "copy" / "llama"


def pieces(folder: Path) -> list[Path]:
    """The folders of the processes' pieces."""
    return sorted((folder.parent / "blocks").iterdir())


@pytest.mark.parametrize("devices", [1, 2])
def test_processes_go_on_with_what_earlier_ones_have_stored(
    folder: Path, produced: tuple[Path, dict[str, Any]], devices: int
) -> None:
    """Also where each has more devices, which share its piece."""
    assert len(pieces(folder)) == 2
    counts = Counter(path.parent.parent.name for path in (folder.parent / "blocks").rglob("*.kv"))
    assert len(set(counts.values())) == 1
    found = said("consuming", folder, 2, devices)
    assert found["tokens"] == produced[1]["tokens"]
    assert found["cached"] == CACHED
    assert len(pieces(folder)) == 2


@pytest.mark.parametrize("piece", [0, 1])
def test_what_one_process_cannot_read_is_computed_by_all(
    folder: Path, produced: tuple[Path, dict[str, Any]], piece: int
) -> None:
    """Of every prompt a block is gone or damaged, which its process finds out as it reads it."""
    files = sorted(pieces(folder)[piece].rglob("*.kv"), key=lambda path: path.stat().st_mtime_ns)
    for number, path in enumerate(files):
        if number % 4 == 1:
            path.unlink()
        elif number % 4 == 3:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = said("consuming", folder)
    assert found["tokens"] == produced[1]["tokens"]
    assert all(own < most for own, most in zip(found["cached"], CACHED, strict=True))
    assert any(found["cached"])


def test_stages_of_layers_in_two_processes(
    folder: Path, produced: tuple[Path, dict[str, Any]]
) -> None:
    """Each has the blocks of its layers, which those with a part of all layers cannot use."""
    first, again = (said("sharing_stages", folder) for _ in range(2))
    assert first["tokens"] == again["tokens"] == produced[1]["tokens"]
    assert (first["cached"], again["cached"]) == ([0] * 4, CACHED)
    assert len(pieces(folder)) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_lost_while_it_reads_ends_all(folder: Path, rank: int) -> None:
    """The files of a piece become pipes that nobody writes to, so that a load never ends."""
    for piece in pieces(folder):
        for path in piece.rglob("*.kv"):
            path.unlink()
            os.mkfifo(path)
    with launched("consuming", folder) as launch:
        launch.until(lambda: all(p.said() for p in launch.processes), SECONDS)
        time.sleep(2)
        assert all(p.said() == [{"begins": True}] for p in launch.processes), str(launch)
        lost, other = launch.processes[rank], launch.processes[1 - rank]
        lost.handle.kill()
        other.assert_ends_without(
            rank, NAMED_WITHIN, f"process {rank} on {socket.gethostname()} was lost"
        )


def test_a_connector_of_the_users_own(folder: Path, produced: tuple[Path, dict[str, Any]]) -> None:
    """Each process stores its piece by a worker half of its own."""
    found = said("own_connector", folder)["turns"]
    assert [turn["tokens"] for turn in found] == [produced[1]["tokens"]] * 2
    assert [turn["cached"] for turn in found] == [[0] * 4, CACHED]
    first, second = (
        {path.name for path in piece.iterdir()} for piece in (folder.parent / "objects").iterdir()
    )
    assert first == second and len(first) >= sum(CACHED) // 16


def test_processes_fetch_their_pieces_from_those_of_another_engine(model: Path) -> None:
    """And where one process of it does not answer, all compute what they lack."""
    params = SamplingParams(**GREEDY)
    with tiny_engine(model, max_model_len=256) as llm:
        plain = [answers(llm.generate([prompt], params))[0] for prompt in OFFLOADED]
    (model.parent / "port").write_text(str(free_ports(2)))
    with launched("serving_pieces", model) as producer:
        producer.until(lambda: all(p.said() for p in producer.processes), SECONDS)
        first, second = [process.said()[0]["said"] for process in producer.processes]
        assert first == second
        (model.parent / "said.json").write_text(json.dumps(first))
        found = said("fetching_pieces", model, devices=2)
        for one in first:  # the second process is said to be where nobody listens
            one["remote_pieces"][list(one["remote_pieces"])[1]] = ["127.0.0.1", free_ports(1)]
        (model.parent / "said.json").write_text(json.dumps(first))
        alone = said("fetching_pieces", model)
        (model.parent / "done").touch()
        assert producer.wait(SECONDS) == [0, 0], str(producer)
    assert found["tokens"] == alone["tokens"] == plain
    assert found["cached"] == CACHED and alone["cached"] == [0] * 4


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that were free a moment ago."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as sockets:
            for port in range(first, first + count):
                sockets.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
