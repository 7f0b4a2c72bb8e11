"""How requests end that do not end by themselves: deadlines, drains, stalls, a dead engine."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx2
import msgspec
import pytest
from starlette.testclient import TestClient

from jengine.assembly.engine import Engine
from jengine.counts import ProgramTotals
from jengine.distributed.replica_state import lost_request
from jengine.engine.core_state import CoreState, PartState
from jengine.outputs import TokenDelta
from jengine.server.http.sse import DONE, PING, EventStream, stream_response
from jengine.server.phase import Phase
from jengine.server.serving.draining import drain
from jengine.server.serving.monitor import judge, monitor
from jengine.server.serving.progress_watch import ProgressWatch
from tests.engine.scripted import script_of, scripted_engine
from tests.server.listening import PATIENCE, until
from tests.server.serving import error_of, letters, letters_engine, service_of, serving

PATH = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 1000, "temperature": 0}


def slow_engine(seconds: float = 0.01) -> Engine:
    engine = letters_engine()
    script_of(engine).step_seconds = seconds
    return engine


def begun(engine: Engine) -> int:
    """How many open requests have their first token."""
    return sum(
        answer.metrics.time_to_first_token is not None for answer in engine.session.open_answers
    )


class Asking:
    """A request in a thread."""

    def __init__(self, client: TestClient, body: dict[str, Any]) -> None:
        self.response: httpx2.Response | None = None
        self._thread = threading.Thread(target=self._ask, args=(client, body))
        self._thread.start()

    def _ask(self, client: TestClient, body: dict[str, Any]) -> None:
        self.response = client.post(PATH, json=body)

    def answer(self) -> httpx2.Response:
        self._thread.join(PATIENCE)
        assert self.response is not None
        return self.response


def test_a_deadline_before_the_first_byte_is_a_status() -> None:
    engine = slow_engine()
    with serving(engine) as client:
        response = client.post(PATH, json=LONG, headers={"X-Request-Timeout": "0.05"})
        assert error_of(response, 408)["type"] == "TimeoutError"
        until(lambda: not service_of(client).open_requests)
        assert not engine.session.open_answers, "it was aborted in the engine as well"


def test_a_deadline_in_a_stream_is_an_event() -> None:
    with serving(slow_engine(), request_timeout=60) as client:
        for seconds in ("0.1", "1", "5"):  # until the stream has begun before its deadline
            header = {"X-Request-Timeout": seconds}
            response = client.post(PATH, json={**LONG, "stream": True}, headers=header)
            if response.status_code == 200:
                break
            error_of(response, 408)
        *chunks, error, done = [line for line in response.text.split("\n\n") if line]
        assert chunks and done == "data: [DONE]"
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == 408


def test_a_header_cannot_raise_the_servers_deadline() -> None:
    with serving(slow_engine(), request_timeout=0.05) as client:
        response = client.post(PATH, json=LONG, headers={"X-Request-Timeout": "100"})
        error_of(response, 408)
        for bad in ("soon", "-1", "nan", "inf", "0"):
            refused = client.post(PATH, json=LONG, headers={"X-Request-Timeout": bad})
            assert error_of(refused, 400)["param"] == "X-Request-Timeout"


def test_a_drain_finishes_what_is_open_and_refuses_what_is_new() -> None:
    engine = letters_engine()
    goes_on = script_of(engine).goes_on
    goes_on.clear()
    with serving(engine) as client:
        service = service_of(client)
        body = {"prompt": "a", "max_tokens": 60, "temperature": 0}
        asking = Asking(client, body)
        until(lambda: service.open_requests)
        draining = threading.Thread(target=client.portal.call, args=(drain, service))  # type: ignore[union-attr]
        draining.start()
        until(lambda: service.phase is Phase.DRAINING)
        refused = client.post(PATH, json=body)
        assert error_of(refused, 503)["type"] == "ServiceUnavailableError"
        assert int(refused.headers["retry-after"]) >= 1
        assert client.get("/health/ready").status_code == client.get("/health").status_code == 503
        assert client.get("/health/live").status_code == 200
        goes_on.set()
        answer = asking.answer().json()
        assert answer["usage"]["completion_tokens"] == 60
        draining.join(PATIENCE)
        assert not draining.is_alive()


@pytest.mark.parametrize("stream", [False, True])
def test_what_does_not_finish_in_time_gets_a_last_chunk(stream: bool) -> None:
    with serving(slow_engine(), shutdown_timeout=0.1) as client:
        service = service_of(client)
        asking = Asking(client, {**LONG, "stream": stream})
        until(
            lambda: any(
                a.metrics.time_to_first_token for a in service.live.engine.session.open_answers
            )
        )
        client.portal.call(drain, service)  # type: ignore[union-attr]
        response = asking.answer()
        assert response.status_code == 200
        text = response.text.split("\n\n")[-3].removeprefix("data: ") if stream else response.text
        assert json.loads(text)["choices"][0]["finish_reason"] == "abort"
        assert service.open_requests == 0


def test_what_has_not_begun_when_the_time_is_over_should_be_sent_elsewhere() -> None:
    engine = scripted_engine(tokenizer=letters(), max_num_seqs=1)
    script_of(engine).step_seconds = 0.01
    with serving(engine, shutdown_timeout=0.05) as client:
        service = service_of(client)
        first = Asking(client, LONG)
        until(lambda: begun(engine) == 1)
        waiting = [Asking(client, {**LONG, "stream": stream}) for stream in (False, True)]
        until(lambda: len(engine.session.open_answers) == 3)
        client.portal.call(drain, service)  # type: ignore[union-attr]
        assert first.answer().json()["choices"][0]["finish_reason"] == "abort"
        for one in waiting:
            error_of(one.answer(), 503)
            assert one.answer().headers["retry-after"]


def test_a_step_that_fails_ends_every_request_and_tells_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = slow_engine()
    script = script_of(engine)

    def fail(plan: Any) -> Any:
        raise RuntimeError("secret at 0x7f0011223344 in /root/jengine/executor.py")

    with serving(engine) as client:
        asking = Asking(client, {**LONG, "stream": True})
        whole = Asking(client, LONG)
        until(
            lambda: (
                len([a for a in engine.session.open_answers if a.metrics.time_to_first_token]) == 2
            )
        )
        monkeypatch.setattr(script, "submit", fail)
        text = asking.answer().text
        error = json.loads(text.split("\n\n")[-3].removeprefix("data: "))["error"]
        assert error["code"] == 503 and text.endswith("data: [DONE]\n\n")
        assert error_of(whole.answer(), 503)["type"] == "InternalServerError"
        assert "secret" not in text + whole.answer().text
        assert client.get("/health").json()["status"] == "dead"
        assert client.get("/health/live").status_code == 503
        error_of(client.post(PATH, json=LONG), 503)


def test_health_turns_red_while_no_step_ends_and_green_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    engine = slow_engine()
    script = script_of(engine)
    with serving(engine, stall_timeout=0.3) as client:
        service = service_of(client)
        watching = client.portal.start_task_soon(monitor, service)  # type: ignore[union-attr]
        asking = Asking(client, {**LONG, "max_tokens": 900})
        until(lambda: script.steps > 5)
        script.goes_on.clear()
        until(lambda: service.phase is Phase.STALLED)
        assert client.get("/health").status_code == 503
        assert client.get("/health").json()["last_step_age_s"] > 0.2
        assert client.get("/health/live").status_code == 200
        script.step_seconds = 0.0
        script.goes_on.set()
        assert asking.answer().status_code == 200
        until(lambda: service.phase is Phase.SERVING)
        assert client.get("/health").status_code == 200
        service.phase = Phase.DEAD
        watching.result(PATIENCE)
    assert "Thread 0x" in capfd.readouterr().err, "the stacks of all threads were written"


class Cores:
    """An engine of three cores, as a watch sees it."""

    def __init__(self) -> None:
        self.parts = [PartState(name=f"core {i} of 3") for i in range(3)]
        self.client = self.session = self

    def state(self) -> CoreState:
        return CoreState(parts=tuple(self.parts))

    def change(self, index: int, **values: Any) -> None:
        self.parts[index] = msgspec.structs.replace(self.parts[index], **values)


def test_a_core_that_stalls_or_dies_degrades_a_server_of_several() -> None:
    cores, now = Cores(), [5.0]
    watch = ProgressWatch(cores, lambda: False, lambda: now[0])  # type: ignore[arg-type]

    def judged(client: TestClient) -> tuple[str, int, int]:
        watch.look()
        judge(service_of(client), watch)
        found = client.get("/health")
        return found.json()["status"], found.status_code, client.get("/health/ready").status_code

    with serving(letters_engine(), stall_timeout=0.1) as client:
        assert judged(client) == ("serving", 200, 200)
        cores.change(0, open_requests=1, steps=1)
        cores.change(1, open_requests=1, steps=1)
        assert judged(client) == ("serving", 200, 200)
        now[0] += 0.15
        cores.change(1, steps=2)
        assert judged(client) == ("degraded", 503, 200)
        assert client.get("/health").json()["problem"] == "core 0 of 3 makes no progress"
        assert client.post(PATH, json={**LONG, "max_tokens": 2}).status_code == 200
        cores.change(2, age=0.2)
        cores.change(1, death="it was killed", open_requests=0)
        assert judged(client) == ("stalled", 503, 503)
        problem = client.get("/health").json()["problem"]
        assert "core 1 of 3 has died" in problem and "killed" not in problem, "causes are logged"
        cores.change(0, steps=2)
        cores.change(2, age=0.0)
        assert judged(client) == ("degraded", 503, 200)
        cores.change(1, death=None)
        assert judged(client) == ("serving", 200, 200)
        assert "problem" not in client.get("/health").json()


def test_a_request_whose_core_was_lost_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = letters_engine()
    lost = lost_request("", "core 1 of 2 has died, and this request with it. Send it again.")
    fetch = engine.client.outputs

    def outputs(wait: bool = True) -> list[TokenDelta]:
        deltas = fetch(wait)
        return [msgspec.structs.replace(lost, request_id=one.request_id) for one in deltas]

    monkeypatch.setattr(engine.client, "outputs", outputs)
    with serving(engine) as client:
        for stream in (False, True):
            response = client.post(PATH, json={**LONG, "stream": stream})
            assert "core 1 of 2 has died" in error_of(response, 503)["message"]
            assert int(response.headers["Retry-After"]) > 0


@pytest.mark.slow
def test_a_step_that_waits_for_its_program_has_more_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = slow_engine()
    core = engine.client.core  # type: ignore[attr-defined]
    awaited = [1]
    monkeypatch.setattr(core, "programs", lambda: ProgramTotals(awaited=awaited[0]))
    script = script_of(engine)
    with serving(engine, stall_timeout=2) as client:
        service = service_of(client)
        watching = client.portal.start_task_soon(monitor, service)  # type: ignore[union-attr]
        asking = Asking(client, {**LONG, "max_tokens": 900})
        until(lambda: script.steps > 5)
        script.goes_on.clear()
        until(lambda: service.watch is not None and (service.watch.age or 0) > 3)
        assert service.phase is Phase.SERVING, "compiling takes its time"
        awaited[0] = 0
        until(lambda: service.phase is Phase.STALLED)
        script.step_seconds = 0.0
        script.goes_on.set()
        assert asking.answer().status_code == 200
        service.phase = Phase.DEAD
        watching.result(PATIENCE)
    assert "Thread 0x" in capfd.readouterr().err


class Client:
    """The two ends of one ASGI request."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message.get("body", b""))


def test_comments_keep_an_idle_stream_alive() -> None:
    async def chunks(client: Client) -> Any:
        for chunk in (b"one", b"two"):
            before = client.sent.count(PING)
            async with asyncio.timeout(PATIENCE):
                while client.sent.count(PING) == before:
                    await asyncio.sleep(0.001)
            yield chunk

    async def work() -> list[bytes]:
        client = Client()
        response = await stream_response(client.receive, chunks(client), 0.03)
        await response({"type": "http"}, client.receive, client.send)
        return client.sent

    sent = asyncio.run(work())
    assert sent.index(PING) < sent.index(b"one") < sent.index(b"two")
    assert PING in sent[sent.index(b"one") : sent.index(b"two")]
    assert sent[-1] == DONE


@pytest.mark.parametrize("keep_alive", [0, 0.02])
@pytest.mark.parametrize("when", ["before the first chunk", "in the stream"])
def test_a_stream_ends_with_its_client(keep_alive: float, when: str) -> None:
    over: list[str] = []
    begun = asyncio.Event()

    async def chunks() -> Any:
        try:
            if when == "in the stream":
                yield b"one"
            begun.set()
            await asyncio.sleep(600)
            yield b"never"
        finally:
            over.append("chunks")

    async def answered(client: Client) -> None:
        response: EventStream = await stream_response(client.receive, chunks(), keep_alive)
        response.when_over = lambda: over.append("places")
        await response({"type": "http"}, client.receive, client.send)

    async def work() -> None:
        client = Client()
        answering = asyncio.ensure_future(answered(client))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        assert not over and not answering.done()
        client.left.set()
        await asyncio.wait({answering}, timeout=PATIENCE)
        assert answering.done()

    asyncio.run(work())
    assert over[0] == "chunks"
