"""The search for requests that do harm: every route of the schema, and a verdict that can fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from jengine.bench.marathon.exchange import SeenReply
from jengine.bench.strangers import run as strangers
from jengine.bench.strangers.__main__ import bench, printed
from jengine.bench.strangers.bodies import Bodies, Case
from jengine.bench.strangers.run import SearchSettings, failures, run
from tests.server.serving import serving


def test_the_same_number_is_the_same_request_and_all_routes_are_asked() -> None:
    with serving() as client:
        bodies = Bodies(client.get("/openapi.json").json(), 1)
    cases = [bodies.case(number) for number in range(400)]
    assert cases == [bodies.case(number) for number in range(400)]
    assert {one.path for one in cases} == set(bodies.routes)
    assert {"/v1/completions", "/v1/chat/completions", "/tokenize"} <= set(bodies.routes)


def test_no_request_is_an_error_of_ours() -> None:
    with serving(admin_key=("master",)) as client:
        bodies = Bodies(client.get("/openapi.json").json(), 2)
        for number in range(150):
            case = bodies.case(number)
            if len(case.body) < 10_000:
                kind = {"Content-Type": "application/json"}
                status = client.post(case.path, content=case.body, headers=kind).status_code
                assert status < 500 or status == 501, (number, case.path, case.body[:300])


@pytest.mark.slow
def test_ten_seconds_of_it(tmp_path: Path) -> None:
    found = asyncio.run(
        run(SearchSettings("demo", seconds=10.0, most_latency=20.0), tmp_path / "log")
    )
    assert found["failed"] == [] and found["requests"] > 20 and found["bystanders"]["answered"]
    assert "Passed" in printed(found)


def test_the_verdict_fails_for_each_promise() -> None:
    good = {
        "bystanders": {"answered": 9, "failures": [], "slowest_s": 0.1},
        "errors": [], "forbidden_log_lines": [], "exit_status": 0, "orphans": 0,
        "resident_mb": {"before": 100, "most": 500, "after": 200},
    }  # fmt: skip
    search = bench.parse(["demo", "--seconds", "3"])[1]
    assert failures(search, good) == []
    for broken in (
        {"bystanders": {"answered": 0, "failures": [], "slowest_s": 0.0}},
        {"bystanders": {"answered": 9, "failures": ["503"], "slowest_s": 0.1}},
        {"bystanders": {"answered": 9, "failures": [], "slowest_s": 2.1}},
        {"errors": ["500"]},
        {"forbidden_log_lines": ["x"]},
        {"exit_status": 1},
        {"resident_mb": {"before": 100, "most": 500, "after": 401}},
    ):
        assert len(failures(search, {**good, **broken})) == 1


def test_a_late_answer_is_told_with_the_requests_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Harmless:
        def case(self, number: int) -> Case:
            return Case(f"/{number}", b"", leaves=False)

    async def work() -> list[dict[str, Any]]:
        answered, never = asyncio.Event(), asyncio.Event()

        async def exchange(port: int, method: str, path: str, body: Any, manner: Any) -> SeenReply:
            await (answered if path == "/honest" else never).wait()
            answered.clear()
            return SeenReply(200, {}, "")

        monkeypatch.setattr(strangers, "exchange", exchange)
        others = strangers.Strangers(0, cast("Bodies", Harmless()), 7)
        honest = strangers.Bystanders(0, others, most_latency=0.0)
        async with asyncio.TaskGroup() as group:
            tasks = []
            for one in (others.attack(), honest.ask("/honest", {}), others.attack()):
                tasks.append(group.create_task(one))
                await asyncio.sleep(0)
            answered.set()
            while not honest.late:
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        return honest.late

    (found,) = asyncio.run(work())
    assert found["beside"] == [7, 8]
