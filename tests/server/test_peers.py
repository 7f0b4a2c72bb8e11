"""Several API processes as one server: what they share and ask each other, within one process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from jengine.server.errors import ApiError
from jengine.server.peers.board import Board, BoardField
from jengine.server.peers.channel import Peers
from jengine.server.peers.messages import (
    AbortRequests,
    GetResponse,
    PausePeer,
    PeerError,
    Question,
    StoredFrame,
)
from jengine.server.phase import Phase
from jengine.server.serving.admission import AdmissionBounds
from tests.server.listening import Listening, listening, until
from tests.server.serving import letters_engine

ADMIN = "admin-key"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Board.create(tmp_path / "board", 3)
    return tmp_path / "board"


def test_sums_and_the_worst_phase(file: Path) -> None:
    boards = [Board.shared(file, index) for index in range(3)]
    assert boards[0].worst_phase(0) is Phase.STARTING
    for board in boards:
        board.phase = Phase.SERVING
    boards[0].add(BoardField.TAKEN, 3)
    boards[2].add(BoardField.TAKEN, 4)
    boards[2].add(BoardField.TAKEN, -1)
    assert [board.total(BoardField.TAKEN) for board in boards] == [6, 6, 6]
    assert [board.own(BoardField.TAKEN) for board in boards] == [3, 0, 3]
    for phase in (Phase.DRAINING, Phase.STALLED, Phase.DEAD):
        boards[1].phase = phase
        assert {board.worst_phase(0) for board in boards} == {phase}


def test_a_process_without_a_beat_stalls_for_the_others_only(file: Path) -> None:
    boards = [Board.shared(file, index) for index in range(3)]
    for board in boards:
        board.phase = Phase.SERVING

    def phases() -> list[Phase]:
        for board in boards[1:]:
            board.beat()
        return [board.worst_phase(0.05) for board in boards]

    until(lambda: phases()[1:] == [Phase.STALLED] * 2, lambda: f"{phases()}")
    assert phases()[0] is Phase.SERVING and boards[1].worst_phase(0) is Phase.SERVING
    boards[0].beat()
    assert boards[1].worst_phase(5) is Phase.SERVING


def test_limits_hold_for_all_processes_together(file: Path) -> None:
    one, two = (AdmissionBounds(5, 100, Board.shared(file, index)) for index in range(2))
    first = one.enter(3)
    second = two.enter(2)
    for admission in (one, two):
        with pytest.raises(ApiError, match="5 completions run or wait"):
            admission.enter(1)
    first.bring(90)
    with pytest.raises(ApiError, match="90 prompt tokens wait"):
        second.bring(20)
    first.release()
    second.bring(20)
    two.enter(3)
    second.release()
    assert (one.taken, two.taken) == (0, 3)


def test_questions_and_answers(tmp_path: Path, file: Path) -> None:
    async def handler(question: Question) -> Any:
        match question:
            case GetResponse("known"):
                return StoredFrame(b"{}", [{"a": 1}])
            case AbortRequests(ids):
                return len(ids or [])
            case PausePeer():
                await asyncio.sleep(600)
            case _:
                raise ValueError("told to fail")

    async def work() -> None:
        peers = [Peers(Board.shared(file, index), tmp_path) for index in range(3)]
        servers = [await one.serve(handler) for one in peers[:2]]
        assert await peers[2].ask(AbortRequests(["a", "b"])) == [2, 2]
        assert await peers[2].ask_one(0, GetResponse("known")) == StoredFrame(b"{}", [{"a": 1}])
        with pytest.raises(PeerError, match="told to fail"):
            await peers[2].ask(GetResponse("other"))
        with pytest.raises(PeerError, match=r"process 0 of 3 does not answer: no answer within"):
            await peers[2].ask(PausePeer("keep"), seconds=0.05)
        with pytest.raises(PeerError, match="process 2 of 3 does not answer"):
            await peers[0].ask(AbortRequests(None))
        for server in servers:
            assert server is not None
            server.close()

    asyncio.run(work())


def test_a_server_of_one_process_asks_nobody() -> None:
    async def work() -> None:
        alone = Peers(Board.alone())
        assert alone.count == 1 and await alone.serve(lambda _: asyncio.sleep(0)) is None
        assert await alone.ask(AbortRequests(None)) == []

    asyncio.run(work())


@contextmanager
def servers(folder: Path, count: int = 2, **settings: Any) -> Iterator[list[Listening]]:
    """API processes as threads of this one, each with an engine of its own."""
    Board.create(folder / "board", count)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                listening(
                    letters_engine(), peers=Peers(Board.shared(folder / "board", index), folder),
                    admin_key=(ADMIN,), **settings,
                )
            )
            for index in range(count)
        ]  # fmt: skip


def ask(server: Listening, path: str, body: Any = None, method: str = "") -> httpx.Response:
    return httpx.request(
        method or ("GET" if body is None else "POST"),
        f"http://127.0.0.1:{server.port}{path}",
        json=body,
        headers={"Authorization": f"Bearer {ADMIN}"},
        timeout=60,
    )


def test_whichever_process_a_request_reaches(tmp_path: Path) -> None:
    with servers(tmp_path) as (one, two):
        for server, times in ((one, 2), (two, 3)):
            for _ in range(times):
                body = {"prompt": "abc", "max_tokens": 2}
                assert ask(server, "/v1/completions", body).status_code == 200
        for server in (one, two):
            text = ask(server, "/metrics").text
            (line,) = [
                line for line in text.splitlines()
                if line.startswith("http_requests_total") and "/v1/completions" in line
            ]  # fmt: skip
            assert line.endswith(" 5.0")
        stored = ask(one, "/v1/responses", {"input": "abc", "max_output_tokens": 2}).json()
        path = f"/v1/responses/{stored['id']}"
        assert ask(two, path).json() == stored
        again = {
            "input": "d", "max_output_tokens": 2, "previous_response_id": stored["id"],
        }  # fmt: skip
        assert ask(two, "/v1/responses", again).status_code == 200
        assert ask(two, path, method="DELETE").json()["deleted"]
        assert ask(one, path).status_code == ask(two, path).status_code == 404


def test_health_load_and_aborts_are_of_all(tmp_path: Path) -> None:
    with servers(tmp_path, shutdown_timeout=0.1) as (one, two):
        one.script.step_seconds = 0.01
        long = {"prompt": "abc", "max_tokens": 1000, "ignore_eos": True, "stream": True}
        client = one.connect(**long)
        client.read_until(b"data: ")
        assert ask(two, "/load").json() == {"server_load": 1}
        assert ask(two, "/abort_requests", {}).json() == {"aborted": 1}
        assert b"[DONE]" in client.read_until(b"[DONE]")
        client.leave()
        until(lambda: ask(two, "/load").json() == {"server_load": 0}, lambda: "still open")
        one.service.phase = Phase.DRAINING
        assert ask(two, "/health/ready").status_code == 503
        assert ask(two, "/health").json()["status"] == "draining"
        assert ask(two, "/health/live").status_code == 200
        one.service.phase = Phase.SERVING
        assert ask(two, "/health/ready").status_code == 200


def test_a_pause_pauses_all(tmp_path: Path) -> None:
    with servers(tmp_path) as (one, two):
        assert ask(one, "/pause?mode=abort", {}).status_code == 200
        for server in (one, two):
            assert ask(server, "/is_paused").json() == {"is_paused": True}
        assert ask(two, "/resume", {}).status_code == 200
        for server in (one, two):
            assert ask(server, "/is_paused").json() == {"is_paused": False}
            body = {"prompt": "abc", "max_tokens": 2}
            assert ask(server, "/v1/completions", body).status_code == 200


@pytest.mark.slow
def test_a_process_that_is_gone_makes_metrics_fail_rather_than_fall(tmp_path: Path) -> None:
    with servers(tmp_path) as (one, two):
        (tmp_path / "1.sock").unlink()
        found = ask(one, "/metrics")
        assert found.status_code == 503 and "API process 1 of 2" in found.text
        assert ask(two, "/metrics").status_code == 200
