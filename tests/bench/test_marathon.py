"""The marathon finds what it is for: lost answers, other tokens, forgotten errors, held blocks."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jengine.bench.marathon.__main__ import bench, printed
from jengine.bench.marathon.canary import Canary
from jengine.bench.marathon.exchange import Manner, exchange
from jengine.bench.marathon.load import FEATURES, ClientsLoad, ending_of, request_of
from jengine.bench.marathon.run import Marathon, failures, run
from jengine.bench.marathon.server import ServerProcess
from jengine.bench.marathon.watch import Watch, WatchSample, gauges

CALM = lambda: False  # noqa: E731
CHUNK = 'data: {"choices": [{"text": "a"}]}\n\n'
METRICS = """# HELP jengine:kv_cache_usage_perc x
jengine:kv_cache_usage_perc{model_name="m",engine="0"} 0.25
jengine:num_requests_running{model_name="m",engine="0"} 2.0
jengine:num_requests_running{model_name="m",engine="1"} 1.0
"""


def whole(status: int, body: str, *headers: str, cut: int | None = None) -> bytes:
    """A response; `cut`: so many bytes of its body are sent."""
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(head) + "\r\n\r\n" + body[:cut]).encode()


def stream(*events: str) -> bytes:
    return ("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + "".join(events)).encode()


def song(*tokens: int) -> bytes:
    choice = {"text": "la", "token_ids": tokens, "finish_reason": "length"}
    return whole(200, json.dumps({"choices": [choice]}))


@asynccontextmanager
async def answering(answer: Callable[[], bytes]) -> AsyncIterator[int]:
    """A server that answers each request so and closes the connection; its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        writer.write(answer())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("kind", "answer", "ending"),
    [
        ("whole", whole(200, "{}"), "answered"),
        ("whole", whole(200, "{...}", cut=2), "lost"),
        ("whole", whole(500, "{}"), "lost"),
        ("whole", whole(503, "{}", "Retry-After: 1"), "refused"),
        ("whole", whole(503, "{}"), "lost"),
        ("whole", b"", "lost"),
        ("stream", stream(CHUNK, "data: [DONE]\n\n"), "answered"),
        ("stream", stream(CHUNK), "lost"),
        ("stream", stream(CHUNK, 'data: {"error": {}}\n\n', "data: [DONE]\n\n"), "lost"),
        ("mistaken", whole(400, "{}"), "answered"),
        ("mistaken", whole(500, "{}"), "lost"),
        ("mistaken", whole(200, "{}"), "lost"),
    ],
)
def test_how_a_request_ended(kind: str, answer: bytes, ending: str) -> None:
    async def work() -> str:
        async with answering(lambda: answer) as port:
            return ending_of(kind, await exchange(port, "POST", "/x", {}))

    assert asyncio.run(work()) == ending


def test_clients_leave_read_slowly_and_lose_patience() -> None:
    async def work() -> None:
        async with answering(lambda: stream(CHUNK * 40, "data: [DONE]\n\n")) as port:
            left = await exchange(port, "POST", "/x", {}, Manner(leaves_after=100))
            assert left.left and ending_of("leaving", left) == "left"
            slow = await exchange(port, "POST", "/x", {}, Manner(pause=0.001))
            assert len(slow.events) == 40 and slow.is_whole
            late = await exchange(port, "POST", "/x", {}, Manner(pause=0.1, patience=0.15))
            assert late.problem and ending_of("slow", late) == "lost"
        nobody = await exchange(port, "POST", "/x", {})
        assert nobody.status == 0 and nobody.problem

    asyncio.run(work())


def test_load_counts_what_is_lost_and_says_what_it_was() -> None:
    answers = iter([whole(500, "the cause")] + [whole(200, "{}")] * 100)

    async def work() -> ClientsLoad:
        async with answering(lambda: next(answers)) as port:
            load = ClientsLoad(port, 3, CALM)
            await load.run(40)
            return load

    load = asyncio.run(work())
    assert load.sent == sum(load.endings.values()) == 40
    lost = [text for text in load.lost if "the cause" in text]
    assert len(lost) <= 1  # it may have met a client who left
    assert len(load.lost) == sum(n for name, n in load.endings.items() if name.endswith(": lost"))


def test_every_kind_of_client_is_there() -> None:
    rng = random.Random(1)
    made = [request_of(rng, number) for number in range(300)]
    assert len({kind for kind, *_ in made}) == 8
    asked = {name for _, _, body, _ in made for name in body}
    assert {name for feature in FEATURES.values() for name in feature} <= asked
    assert all(json.dumps(body) for _, _, body, _ in made)
    assert all(body.get("min_tokens", 0) <= abs(body["max_tokens"]) for _, _, body, _ in made)


def test_the_canary_notices_other_tokens_and_failures() -> None:
    songs = iter([song(1, 2), song(1, 2), song(1, 3), whole(503, "{}"), song(1, 2)])

    async def work() -> Canary:
        async with answering(lambda: next(songs)) as port:
            canary = Canary(port, CALM)
            await canary.learn()
            for _ in range(4):
                await canary.once()
            return canary

    canary = asyncio.run(work())
    assert (canary.sung, len(canary.other), len(canary.failures)) == (4, 1, 1)


def test_metrics_are_summed_over_engines() -> None:
    async def work() -> dict[str, float]:
        async with answering(lambda: whole(200, METRICS)) as port:
            return await gauges(port)

    assert asyncio.run(work()) == {"kv_cache_usage_perc": 0.25, "num_requests_running": 3.0}


def test_lines_of_the_log_that_must_not_be_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    watch = Watch(ServerProcess("demo", [], log), CALM)
    log.write_text("INFO all is well\nERROR one\n")
    watch.scan(disturbed=True)
    assert watch.forbidden == []
    log.write_text(log.read_text() + "ERROR two\nTask exception was never retrieved\n")
    watch.scan(disturbed=False)
    assert watch.forbidden == ["ERROR two", "Task exception was never retrieved"]
    log.write_text(log.read_text() + "Task exception was never retrieved\n")
    watch.scan(disturbed=True)
    assert len(watch.forbidden) == 3


def test_the_slope_of_memory_is_that_of_the_second_half(tmp_path: Path) -> None:
    watch = Watch(ServerProcess("demo", [], tmp_path / "log"), CALM)
    for at in range(0, 121, 10):
        grown = 100 + at if at < 60 else 160 + (at - 60) / 30
        watch.samples.append(WatchSample(at, grown, 0.5 if at < 80 else 0.7, 0, 0))
    assert watch.memory_slope() == 2.0
    assert watch.usage_growth() == pytest.approx(20, abs=1)


GOOD: dict[str, Any] = {
    "lost_count": 0, "injections": [{"recovery_s": 3.0, "problem": ""}], "seconds": 300.0,
    "canary": {"other_tokens": [], "calm": 100, "calm_failure_count": 1},
    "forbidden_log_lines": [], "memory_slope_mib_per_minute": 0.2, "kv_usage_growth_points": 2.0,
    "waited_for_compiler_s": 0.0, "held": {"running": 0.0, "usage": 0.0}, "exit_status": 0,
    "orphans": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"lost_count": 1}, "requests were lost"),
        ({"canary": {**GOOD["canary"], "other_tokens": ["x"]}}, "other tokens"),
        ({"canary": {**GOOD["canary"], "calm_failure_count": 2}}, "more often than 1 in 100"),
        ({"injections": [{"recovery_s": None, "problem": ""}]}, "did not recover"),
        ({"injections": [{"recovery_s": 40.0, "problem": ""}]}, "did not recover"),
        ({"injections": [{"recovery_s": 1.0, "problem": "left"}]}, "did not end as it must"),
        ({"forbidden_log_lines": ["x"]}, "the log has lines"),
        ({"memory_slope_mib_per_minute": 1.5}, "memory grows"),
        ({"kv_usage_growth_points": 11.0}, "fills up"),
        ({"waited_for_compiler_s": 0.1}, "waited for the compiler"),
        ({"waited_for_compiler_s": None}, "waited for the compiler"),
        ({"held": {"running": 1.0}}, "held at the end"),
        ({"held": {"running": None}}, "does not tell"),
        ({"exit_status": 1}, "status 0"),
        ({"orphans": 1}, "processes are left"),
    ],
)
def test_the_verdict(changed: dict[str, Any], words: str | None) -> None:
    failed = failures(Marathon(model="demo", fault_pause=0), {**GOOD, **changed})
    assert failed == [] if words is None else len(failed) == 1 and words in failed[0]


def test_the_command_line() -> None:
    _, marathon = bench.parse(["m", "--seconds", "5", "--", "--max-num-seqs", "8"])
    assert marathon == Marathon(model="m", seconds=5.0, flags=("--max-num-seqs", "8"))
    _, soak = bench.parse(["--requests", "100"])
    assert soak.is_calm and not marathon.is_calm and soak.requests == 100 and soak.flags == ()


@pytest.mark.slow
def test_a_server_survives_a_short_marathon(tmp_path: Path) -> None:
    flags = ("--executor", "tests.server.scripted:Executor",
             "--executor-options.step_seconds", "0.002")  # fmt: skip
    marathon = Marathon(
        model="demo", flags=flags, seconds=12, clients=8, fault_pause=1.0, stop_seconds=0.5,
        sample_pause=0.5,
    )  # fmt: skip
    result = asyncio.run(run(marathon, tmp_path / "log"))
    assert result["failed"] == [], printed(result)
    assert len(result["injections"]) >= 2 and result["requests"] > 50
