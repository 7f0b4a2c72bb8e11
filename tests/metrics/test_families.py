"""Metrics of several processes as one text: what fronts count adds up, cores count once."""

from __future__ import annotations

from prometheus_client import Gauge
from prometheus_client.parser import text_string_to_metric_families

from jengine.counts import Counts
from jengine.metrics.exporter import EngineFacts, Exporter
from jengine.metrics.front_stats import EndedCompletion, FrontStats
from jengine.metrics.merged_metrics import CREATED, families_of, merged
from jengine.metrics.registry import process_registry, text_of
from jengine.server.http.route_metrics import HttpCounters

COUNTS = Counts(running=3, generation_tokens=100, preemptions=2)


def process(ended: int, requests: int):
    """The families of a process that has counted so much."""
    registry, stats = process_registry(), FrontStats(1024)
    registry.register(Exporter(stats, lambda: COUNTS, EngineFacts("demo")))
    http = HttpCounters(registry)
    for _ in range(ended):
        stats.of(0).end_completion(EndedCompletion("stop", 0.5, 10, 0, 5, None, None))
    for _ in range(requests):
        http.count("/v1/completions", "POST", 200, 0.3)
    stats.dropped_frames = 4
    return families_of(registry)


def values(text: bytes) -> dict[str, float]:
    """The value of each line, over all of its labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def test_fronts_add_up_and_cores_count_once() -> None:
    own = process(2, 3)
    found = values(text_of(merged(own, [process(5, 1), process(0, 0)])))
    assert found["jengine:request_success_total"] == 7
    assert found["jengine:e2e_request_latency_seconds_count"] == 7
    assert found["jengine:e2e_request_latency_seconds_sum"] == 3.5
    assert found["http_requests_total"] == 4
    assert found["jengine:generation_tokens_total"] == 100
    assert found["jengine:num_requests_running"] == 3
    assert found["jengine:num_preemptions_total"] == 2
    assert found["jengine:dropped_ipc_frames_total"] == 4
    assert found["jengine:cache_config_info"] == 1
    alone = values(text_of(merged(own, [])))
    assert found["process_resident_memory_bytes"] > 2 * alone["process_resident_memory_bytes"]
    assert found["process_start_time_seconds"] == alone["process_start_time_seconds"]
    assert found["python_info"] == 1


def test_one_process_alone_says_what_its_registry_says() -> None:
    registry = process_registry()
    HttpCounters(registry).count("/v1/models", "GET", 200, 0.1)
    registry.register(Exporter(FrontStats(1024), lambda: COUNTS, EngineFacts("demo")))
    same = [line for line in text_of(merged(families_of(registry), [])).splitlines()
            if b"process_" not in line and b"python_gc" not in line]  # fmt: skip
    expected = [line for line in text_of(registry).splitlines()
                if b"process_" not in line and b"python_gc" not in line]  # fmt: skip
    assert same == expected


def test_a_series_began_with_the_first_process_that_has_it() -> None:
    early, late = process(0, 1), process(0, 1)
    first = values(text_of(merged(early, [])))["http_requests" + CREATED]
    for own, other in ((early, late), (late, early)):
        assert values(text_of(merged(own, [other])))["http_requests" + CREATED] == first


def test_what_only_another_process_has_is_shown() -> None:
    registry = process_registry()
    own = families_of(registry)
    found = values(text_of(merged(own, [process(1, 0)])))
    assert found["jengine:request_success_total"] == 1
    assert found["jengine:generation_tokens_total"] == 100
    Gauge("of_mine", "A gauge.", registry=registry).set(2)
    assert values(text_of(merged(families_of(registry), [families_of(registry)])))["of_mine"] == 2
