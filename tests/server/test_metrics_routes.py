"""GET /metrics, the metrics of HTTP, and the metrics that a response carries."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from jengine.outputs import RequestMetrics
from jengine.server.app import ENDPOINTS, make_app
from jengine.server.formats.request_metrics import PerRequestMetrics, per_request_metrics
from jengine.server.phase import Phase
from jengine.server.serving import monitor
from jengine.server.serving.service import Service
from jengine.server.settings import ServerSettings
from tests.engine.scripted import script_of
from tests.server.listening import until
from tests.server.serving import NAME, events, letters_engine, service_of, serving

ASK = {"model": NAME, "prompt": "abc", "max_tokens": 4, "temperature": 0}


def scraped(client: TestClient) -> dict[str, float]:
    """Sample with its labels -> value."""
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        f"{one.name}{sorted(one.labels.items())}": one.value
        for family in text_string_to_metric_families(response.text)
        for one in family.samples
    }


def value(found: dict[str, float], name: str, **labels: str) -> float:
    return found[f"{name}{sorted(labels.items())}"]


@pytest.mark.parametrize("prefix", ["jengine", "vllm"])
def test_what_was_answered_is_counted(prefix: str) -> None:
    with serving(metrics_compat=prefix) as client:
        for _ in range(3):
            assert client.post("/v1/completions", json=ASK).status_code == 200
        found = scraped(client)
    engine = {"model_name": NAME, "engine": "0"}
    assert value(found, f"{prefix}:generation_tokens_total", **engine) == 12
    assert value(found, f"{prefix}:prompt_tokens_total", **engine) == 9
    assert value(found, f"{prefix}:e2e_request_latency_seconds_count", **engine) == 3
    success = {**engine, "finished_reason": "length"}
    assert value(found, f"{prefix}:request_success_total", **success) == 3
    http = {"handler": "/v1/completions", "method": "POST"}
    assert value(found, "http_requests_total", **http, status="2xx") == 3
    assert value(found, "http_request_duration_seconds_count", **http) == 3


def test_a_clock_that_jumps_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    days, real = itertools.cycle([0, -1e6, 1e6]), time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(days))
    body = {**ASK, "max_tokens": 20, "stream": True}
    with serving(enable_per_request_metrics=True, stall_timeout=60) as client:
        service = service_of(client)
        watching = client.portal.start_task_soon(monitor.monitor, service)  # type: ignore[union-attr]
        for _ in range(3):
            assert events(client.post("/v1/completions", json=body))
        answer = client.post("/v1/completions", json=ASK).json()
        found = scraped(client)
        assert client.get("/health").status_code == 200 and service.phase is Phase.SERVING
        service.phase = Phase.DEAD
        watching.result(60)
    seconds = {name: took for name, took in found.items() if "_seconds_sum" in name}
    assert seconds and all(0 <= took < 60 for took in seconds.values()), seconds
    assert all(0 <= took < 60_000 for name, took in answer["metrics"].items() if "_ms" in name)


def test_clients_cannot_make_series() -> None:
    """Not with paths, methods, models, users, request ids or unknown fields."""
    with serving(strict_requests=False) as client:
        client.post("/v1/completions", json=ASK)
        client.post("/v1/completions", json={})
        client.get("/nothing")
        client.request("BREW", "/v1/models")
        before = set(scraped(client))
        for number in range(5):
            client.get(f"/nothing/{number}")
            client.get(f"/v1/models/{number}")
            client.request(f"BREW{number}", "/v1/models")
            more = {"user": f"user {number}", f"field_{number}": 1, "request_id": f"mine-{number}"}
            assert client.post("/v1/completions", json={**ASK, **more}).status_code == 200
            client.post("/v1/completions", json={**ASK, "model": f"other-{number}"})
        found = scraped(client)
    new = set(found) - before
    assert {name.split("[")[0] for name in new} <= {
        "http_requests_total", "http_requests_created", "http_request_duration_seconds_bucket",
        "http_request_duration_seconds_count", "http_request_duration_seconds_sum",
        "http_request_duration_seconds_created",
    }  # fmt: skip
    handlers = {endpoint.path for endpoint in ENDPOINTS} | {"none"}
    assert all(any(f"('handler', '{one}')" in name for one in handlers) for name in new)
    assert not any(str(number) in name.split("handler")[0] for name in new for number in range(5))
    assert value(found, "jengine:ignored_request_fields_total", model_name=NAME) == 5


def test_refusals_at_the_door_are_counted_by_limit() -> None:
    with serving(max_num_queued_reqs=2) as client:
        assert client.post("/v1/completions", json={**ASK, "n": 3}).status_code == 503
        labels = {"model_name": NAME, "reason": "max_num_queued_reqs"}
        assert value(scraped(client), "jengine:admission_rejections_total", **labels) == 1


def test_a_server_without_an_engine_shows_its_process() -> None:
    with TestClient(make_app(None, ServerSettings())) as client:
        found = scraped(client)
    assert value(found, "process_resident_memory_bytes") > 0
    assert not [name for name in found if name.startswith("jengine:")]


def test_questions_about_the_server_are_not_counted() -> None:
    with serving() as client:
        for path in ("/health", "/metrics", "/ping", "/version", "/load"):
            client.get(path)
        assert not [name for name in scraped(client) if name.startswith("http_requests_total")]


def test_a_scrape_does_not_wait_for_a_step() -> None:
    engine = letters_engine()
    goes_on = script_of(engine).goes_on
    goes_on.clear()
    with serving(engine) as client, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(client.post, "/v1/completions", json={**ASK, "max_tokens": 1})
        until(lambda: script_of(engine).steps)
        scraped(client)
        assert not answering.done()
        goes_on.set()
        answering.result()


def test_the_monitor_logs_statistics_of_an_idle_engine() -> None:
    ticks = []

    class Log:
        def tick(self) -> None:
            ticks.append(1)

    engine = letters_engine()
    engine.session.log = Log()  # type: ignore[assignment]
    service = Service(ServerSettings())
    service.adopt(engine)

    async def watch() -> None:
        watching = asyncio.ensure_future(monitor.monitor(service))
        async with asyncio.timeout(60):
            while not ticks:
                await asyncio.sleep(0.001)
        watching.cancel()

    asyncio.run(watch())
    service.shutdown()
    assert ticks


def test_the_times_of_a_response_are_those_of_vllm() -> None:
    times = RequestMetrics(
        queued_ts=10.0, scheduled_ts=10.5, first_token_ts=11.0, last_token_ts=13.0,
        num_generation_tokens=5,
    )  # fmt: skip
    assert per_request_metrics(times) == PerRequestMetrics(
        time_to_first_token_ms=500.0, generation_time_ms=2000.0, queue_time_ms=500.0,
        mean_itl_ms=500.0, tokens_per_second=2.0,
    )  # fmt: skip
    assert per_request_metrics(RequestMetrics()) == PerRequestMetrics()


def test_responses_carry_their_times_where_that_is_enabled() -> None:
    stream = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    with serving(enable_per_request_metrics=True) as client:
        whole = client.post("/v1/completions", json=ASK).json()["metrics"]
        last = events(client.post("/v1/completions", json=stream))[-1]["metrics"]
        for metrics in (whole, last):
            assert set(metrics) == set(PerRequestMetrics.__struct_fields__)
            assert min(metrics.values()) >= 0 and metrics["tokens_per_second"] > 0
        several = client.post("/v1/completions", json={**ASK, "n": 2, "temperature": 1}).json()
        assert several["metrics"] is None, "the times of which answer?"
    with serving() as client:
        assert client.post("/v1/completions", json=ASK).json()["metrics"] is None
