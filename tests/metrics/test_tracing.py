"""Spans of requests, kept in memory by OpenTelemetry's own exporter."""

from __future__ import annotations

from typing import Any

import pytest

from jengine import SamplingParams
from jengine.assembly.settings.args import EngineArgs
from jengine.engine.session import Session
from jengine.engine.timing import Arrival
from jengine.errors import ConfigError
from jengine.metrics.tracing import Tracer
from tests.engine.scripted import scripted_engine
from tests.server.serving import NAME, letters_engine, serving

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
GREEDY = SamplingParams(temperature=0, max_tokens=4)


class Spans:
    """A tracer whose spans can be read at once."""

    def __init__(self) -> None:
        self.exporter = memory.InMemorySpanExporter()
        provider = sdk.TracerProvider()
        provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self.tracer = Tracer(provider, "tiny")

    def watch(self, session: Session) -> None:
        session._answers.tracer = self.tracer

    @property
    def all(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())


def run(session: Session) -> None:
    while session.has_work:
        session.step()


def test_a_span_has_both_sets_of_names() -> None:
    session, spans = scripted_engine().session, Spans()
    spans.watch(session)
    session.submit([1, 2, 3], GREEDY, request_id="mine")
    run(session)
    (span,) = spans.all
    found = dict(span.attributes)
    assert span.name == "llm_request" and span.kind.name == "SERVER" and span.parent is None
    for old, new, value in (("prompt", "input", 3), ("completion", "output", 4)):
        assert found[f"gen_ai.usage.{old}_tokens"] == found[f"gen_ai.usage.{new}_tokens"] == value
    assert found["gen_ai.request.id"] == "mine" and found["gen_ai.response.model"] == "tiny"
    assert found["gen_ai.operation.name"] == "text_completion"
    assert found["gen_ai.request.model"] == "tiny"
    assert (found["gen_ai.request.max_tokens"], found["gen_ai.request.n"]) == (4, 1)
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    latency = {
        name.removeprefix("gen_ai.latency."): value
        for name, value in found.items()
        if name.startswith("gen_ai.latency.")
    }
    assert set(latency) == {
        "time_in_queue", "time_to_first_token", "e2e", "time_in_model_prefill",
        "time_in_model_decode", "time_in_model_inference",
    }  # fmt: skip
    assert min(latency.values()) >= 0 and latency["time_to_first_token"] <= latency["e2e"]
    assert abs((span.end_time - span.start_time) / 1e9 - latency["e2e"]) < 1e-3


def test_a_request_belongs_to_its_callers_trace() -> None:
    session, spans = scripted_engine().session, Spans()
    spans.watch(session)
    for parent in (PARENT, "nonsense", None):
        session.submit([1, 2, 3], GREEDY, arrival=Arrival(1.0, parent))
    run(session)
    first, second, third = spans.all
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == SPAN
    assert second.parent is None and third.parent is None


def test_requests_without_tokens_have_a_span_too() -> None:
    session, spans = scripted_engine().session, Spans()
    spans.watch(session)
    answer = session.submit([1, 2, 3], GREEDY)
    session.discard(answer)
    run(session)
    assert session.open_answers == []
    (span,) = spans.all
    assert span.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert "gen_ai.latency.time_in_queue" not in span.attributes


def test_the_header_of_an_http_request_is_the_parent() -> None:
    engine, spans = letters_engine(), Spans()
    spans.watch(engine.session)
    with serving(engine) as client:
        ask = {"model": NAME, "prompt": "abc", "max_tokens": 2}
        headers = {"traceparent": PARENT}
        assert client.post("/v1/completions", json=ask, headers=headers).status_code == 200
    (span,) = spans.all
    assert f"{span.context.trace_id:032x}" == TRACE


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("jengine.metrics.tracing.importlib.import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'jengine\[otel\]'"):
        Tracer.to("http://localhost:4318/v1/traces", "tiny")


def test_what_is_left_is_sent_at_the_end() -> None:
    session, spans = scripted_engine().session, Spans()
    ended = []
    spans.tracer.provider.shutdown = lambda: ended.append(1)
    session.close()
    spans.watch(session)
    session.close()
    assert ended == [1]


def test_the_setting_has_vllms_name() -> None:
    args = EngineArgs("demo", otlp_traces_endpoint="http://there/v1/traces")
    assert args.otlp_traces_endpoint == "http://there/v1/traces"
