"""Prometheus text: names, labels, values, and a number of series that does not grow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jengine import SamplingParams
from jengine.api.metrics import exporter_of
from jengine.assembly.engine import Engine
from jengine.counts import (
    BlockTimes,
    CopyCounts,
    Counts,
    DraftCounts,
    Histogram,
    ProgramTotals,
    together,
)
from jengine.errors import ConfigError
from jengine.metrics import catalog, reader
from jengine.metrics.exporter import EngineFacts, Exporter, core_values
from jengine.metrics.front_stats import FrontStats
from jengine.metrics.histogram_buckets import request_tokens
from jengine.metrics.registry import process_registry, text_of
from tests.engine.scripted import scripted_engine

GREEDY = SamplingParams(temperature=0, max_tokens=5)
MINE = {"model_name": "tiny", "engine": "0"}
# The metrics that vLLM's own dashboard plots.
DASHBOARD = (
    "e2e_request_latency_seconds", "prompt_tokens", "generation_tokens", "request_success",
    "inter_token_latency_seconds", "time_to_first_token_seconds", "num_requests_running",
    "num_requests_waiting", "kv_cache_usage_perc", "request_prompt_tokens",
    "request_generation_tokens", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_max_num_generation_tokens",
)  # fmt: skip


def of_counts(counts: Callable[[], Counts], prefix: str = "jengine") -> Exporter:
    return Exporter(FrontStats(100), counts, EngineFacts("tiny"), prefix)


def series(name: str, **labels: str) -> str:
    """A sample's name and labels as one string."""
    return f"{name}{sorted(labels.items())}"


def mine(name: str, **labels: str) -> str:
    """A series of this file's engine."""
    return series(name, **MINE, **labels)


def text(exporter: Exporter) -> str:
    """What a server would show."""
    registry = process_registry()
    registry.register(exporter)
    return text_of(registry).decode()


def values(exporter: Exporter) -> dict[str, float]:
    """The value of each sample, by `series`."""
    return {
        series(one.name, **one.labels): one.value
        for family in text_string_to_metric_families(text(exporter))
        for one in family.samples
    }


def run(engine: Engine, *prompts: list[int]) -> None:
    for prompt in prompts:
        engine.session.submit(prompt, GREEDY)
    while engine.session.has_work:
        engine.session.step()


def test_counts_become_samples() -> None:
    counts = Counts(
        running=3, waiting=5, deferred=2, cache_usage=0.25, prompt_tokens=100, preemptions=4,
        cached_prompt_tokens=40, generation_tokens=7, corrupted=1, weights_version=6,
        programs=ProgramTotals({"4+0x8": 2}, 1.5, 1, 75, 100),
        drafts=DraftCounts(4, 9, 5, [4, 3, 2], [3, 2, 0]),
    )  # fmt: skip
    found = values(of_counts(lambda: counts))
    assert found[mine("jengine:num_requests_running")] == 3
    assert found[mine("jengine:num_requests_waiting")] == 5
    reasons = {
        reason: found[mine("jengine:num_requests_waiting_by_reason", reason=reason)]
        for reason in ("capacity", "deferred")
    }
    assert reasons == {"capacity": 3, "deferred": 2}
    assert found[mine("jengine:kv_cache_usage_perc")] == 0.25
    assert found[mine("jengine:prompt_tokens_total")] == 100
    assert found[mine("jengine:num_preemptions_total")] == 4
    assert found[mine("jengine:prompt_tokens_by_source_total", source="local_compute")] == 60
    assert found[mine("jengine:corrupted_requests_total")] == 1
    assert found[mine("jengine:compile_total", bucket="4+0x8")] == 2
    assert found[mine("jengine:unexpected_recompiles_total")] == 1
    assert found[mine("jengine:padding_waste_ratio")] == 0.25
    assert found[mine("jengine:spec_decode_num_drafts_total")] == 4
    assert found[mine("jengine:spec_decode_num_draft_tokens_total")] == 9
    assert found[mine("jengine:spec_decode_num_accepted_tokens_total")] == 5
    per_position = [
        found[mine("jengine:spec_decode_num_accepted_tokens_per_pos_total", position=str(place))]
        for place in range(3)
    ]
    assert per_position == [3, 2, 0]
    assert found[series("process_start_time_seconds")] > 0


def test_histograms_are_cumulative() -> None:
    counts = Counts(step_tokens=Histogram([1.0, 8.0], [2, 3, 4], 50.0))
    shown = text(of_counts(lambda: counts))
    labels = 'engine="0",le="{}",model_name="tiny"'
    for bound, number in (("1.0", 2), ("8.0", 5), ("+Inf", 9)):
        assert (
            f"jengine:iteration_tokens_total_bucket{{{labels.format(bound)}}} {number}.0" in shown
        )
    assert 'jengine:iteration_tokens_total_sum{engine="0",model_name="tiny"} 50.0' in shown
    assert 'jengine:iteration_tokens_total_count{engine="0",model_name="tiny"} 9.0' in shown


def test_every_metric_of_the_catalog_is_exported_with_its_labels() -> None:
    counts = Counts(block_times=BlockTimes())
    families = {family.name: family for family in of_counts(lambda: counts).collect()}
    for metric in catalog.METRICS:
        assert f"jengine:{metric.name}" in families, metric.name
    assert {f"jengine:{name}" for name in DASHBOARD} <= set(families)


def test_how_long_blocks_stay_is_told_where_it_is_measured() -> None:
    name = "jengine:kv_block_reuse_gap_seconds_sum"
    times = BlockTimes()
    times.reuse_gap.observe(3.5)
    assert name not in text(of_counts(Counts))
    both = together([Counts(block_times=times), Counts(block_times=times), Counts()])
    assert both.block_times is not None and both.block_times.reuse_gap.total == 7
    shown = text(of_counts(lambda: both))
    for engine in "01":
        assert f'{name}{{engine="{engine}",model_name="tiny"}} 3.5' in shown
    assert f'{name}{{engine="2"' not in shown


def test_vllms_prefix_replaces_ours() -> None:
    found = values(of_counts(Counts, "vllm"))
    assert mine("vllm:num_requests_running") in found
    assert not [name for name in found if name.startswith("jengine:")]


def test_each_replica_is_an_engine_of_its_own() -> None:
    both = Counts(running=3, replicas=(Counts(running=1), Counts(running=2)))
    found = values(of_counts(lambda: both))
    assert found[mine("jengine:num_requests_running")] == 1
    assert found[series("jengine:num_requests_running", model_name="tiny", engine="1")] == 2


def test_requests_do_not_add_series() -> None:
    engine = scripted_engine()
    exporter = exporter_of(engine, "tiny")
    before = set(values(exporter))
    run(engine, [1, 2, 3], [4, 5], [6] * 40)
    engine.session.submit([1, 2], GREEDY, request_id='"}\nevil{')
    run(engine)
    engine.session.stats.rejections["max_num_queued_reqs"] += 1
    after = values(exporter)
    assert set(after) == before
    assert after[mine("jengine:request_success_total", finished_reason="length")] == 4
    assert after[mine("jengine:generation_tokens_total")] == 20
    assert after[mine("jengine:prompt_tokens_total")] == 47
    assert after[mine("jengine:e2e_request_latency_seconds_count")] == 4
    assert after[mine("jengine:request_prompt_tokens_sum")] == 47
    name = "jengine:admission_rejections_total"
    assert after[series(name, model_name="tiny", reason="max_num_queued_reqs")] == 1


def test_token_buckets_end_at_the_longest_context() -> None:
    assert request_tokens(100) == (1, 2, 5, 10, 20, 50, 100)
    assert request_tokens(99)[-1] == 50


def test_the_reader_returns_objects_of_vllms_shape() -> None:
    engine = scripted_engine()
    run(engine, [1, 2, 3])
    found = {metric.name: metric for metric in reader.snapshot(exporter_of(engine, "tiny"))}
    tokens = found["jengine:generation_tokens"]
    assert isinstance(tokens, reader.Counter) and tokens.value == 5 and tokens.labels == MINE
    running = found["jengine:num_requests_running"]
    assert isinstance(running, reader.Gauge) and running.value == 0
    prompts = found["jengine:request_prompt_tokens"]
    assert isinstance(prompts, reader.Histogram)
    assert (prompts.count, prompts.sum) == (1, 3.0)
    assert prompts.buckets["2.0"] == 0 and prompts.buckets["5.0"] == 1
    assert prompts.buckets["+Inf"] == prompts.count


def test_an_unknown_prefix_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metrics prefix='other': expected one of 'jengine'"):
        exporter_of(scripted_engine(), prefix="other")


def test_copies_of_replicas_add_up_and_their_usage_does_not() -> None:
    one = Counts(copies=CopyCounts(1, 20, 300, 4000, used_slots=3, slots=4))
    both = together([one, Counts(copies=CopyCounts(1, 2, 3, 4, used_slots=1, slots=4))])
    values = core_values(both, None)
    assert values["kv_offload_load_bytes"] == {"": 2}
    assert values["kv_offload_store_bytes"] == {"": 22}
    assert values["kv_connector_fetched_blocks"] == {"": 303}
    assert values["kv_connector_failed_blocks"] == {"": 4004}
    assert values["kv_offload_cpu_cache_usage_perc"] == {"": 0.5}
    assert core_values(Counts(), None)["kv_offload_cpu_cache_usage_perc"] == {"": 0.0}


def test_tokens_from_outside_of_the_device() -> None:
    counts = Counts(
        prompt_tokens=100, cached_prompt_tokens=40, external_prompt_tokens=30, external_queries=90,
        external_hits=32,
    )  # fmt: skip
    values = core_values(counts, None)
    assert values["external_prefix_cache_queries"] == {"": 90}
    assert values["external_prefix_cache_hits"] == {"": 32}
    by_source = {"local_compute": 60, "local_cache_hit": 10, "external_kv_transfer": 30}
    assert values["prompt_tokens_by_source"] == by_source
