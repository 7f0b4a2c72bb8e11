"""All metrics: name, type, labels and help text. Names, labels and buckets are vLLM's where vLLM
has the metric.

Names are without prefix, and without the `_total` of counters. Every series has the labels
`model_name` and `engine` besides its own. No label ever holds a user's text.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jengine.metrics.histogram_buckets import REQUEST_TOKENS


class CatalogMetric(NamedTuple):
    name: str
    kind: Literal["gauge", "counter", "histogram"]
    text: str
    label: str | None = None  # besides `model_name` and `engine`
    buckets: str = ""  # family of a histogram's buckets


def gauge(name: str, text: str, label: str | None = None) -> CatalogMetric:
    return CatalogMetric(name, "gauge", text, label)


def counter(name: str, text: str, label: str | None = None) -> CatalogMetric:
    return CatalogMetric(name, "counter", text, label)


def histogram(name: str, buckets: str, text: str, label: str | None = None) -> CatalogMetric:
    return CatalogMetric(name, "histogram", text, label, buckets)


GAUGES = (
    gauge("num_requests_running", "Requests that hold a row of the running batch."),
    gauge("num_requests_waiting", "Requests that wait for a row, preempted ones included."),
    gauge(
        "num_requests_waiting_by_reason",
        "Waiting requests by what they wait for: capacity (rows, KV cache, token budget) or "
        "deferred (something else that must be ready first).",
        "reason",
    ),
    gauge("kv_cache_usage_perc", "Share of the KV cache's blocks in use, 0 to 1."),
    gauge(
        "kv_offload_cpu_cache_usage_perc",
        "Share of the host's memory for KV cache blocks in use, 0 to 1.",
    ),
    gauge(
        "engine_sleep_state",
        "Whether the engine is awake, has its weights offloaded, or has discarded everything.",
        "sleep_state",
    ),
    gauge("last_step_age_seconds", "Seconds since a step was last committed."),
    gauge("weight_version", "How often the parameters were replaced."),
    gauge("padding_waste_ratio", "Share of the tokens computed so far that were padding."),
)
COUNTERS = (
    counter("prompt_tokens", "Prompt tokens of requests whose prefill is complete."),
    counter("prompt_tokens_by_source", "Prompt tokens by where they came from.", "source"),
    counter("prompt_tokens_cached", "Prompt tokens found in a cache."),
    counter("generation_tokens", "Tokens generated."),
    counter("num_preemptions", "How often a running request lost its row and its blocks."),
    counter("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    counter("prefix_cache_hits", "Tokens found in the prefix cache on the device."),
    counter("external_prefix_cache_queries", "Tokens looked up in caches outside this engine."),
    counter("external_prefix_cache_hits", "Tokens found in caches outside this engine."),
    counter("kv_offload_load_bytes", "Bytes of KV cache blocks copied from the host's memory."),
    counter("kv_offload_store_bytes", "Bytes of KV cache blocks copied to the host's memory."),
    counter("kv_connector_fetched_blocks", "KV cache blocks that a connector has brought."),
    counter("kv_connector_failed_blocks", "KV cache blocks that a connector could not bring."),
    counter("mm_cache_queries", "Multi-modal items looked up in their cache."),
    counter("mm_cache_hits", "Multi-modal items found in their cache."),
    counter(
        "corrupted_requests",
        "Requests ended by logits or tokens that cannot be.",
    ),
    counter("spec_decode_num_drafts", "Steps of a row that ran draft tokens."),
    counter("spec_decode_num_draft_tokens", "Draft tokens that steps have run."),
    counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
    counter(
        "spec_decode_num_accepted_tokens_per_pos",
        "Draft tokens that were accepted, by position among the drafts of a step.",
        "position",
    ),
    counter("request_success", "Completions that have ended, by reason.", "finished_reason"),
    counter("estimated_flops_per_gpu", "Estimated floating-point operations per device."),
    counter("estimated_read_bytes_per_gpu", "Estimated bytes read from memory per device."),
    counter("estimated_write_bytes_per_gpu", "Estimated bytes written to memory per device."),
    counter("compile", "Programs compiled, or loaded compiled, by bucket.", "bucket"),
    counter("compile_seconds", "Seconds spent on compiling, or on loading compiled programs."),
    counter("unexpected_recompiles", "Compilations after warm-up, for which a step had to wait."),
    counter("step_compile_wait_seconds", "Seconds for which steps have waited for the compiler."),
    counter("late_compiles", "Compilations after warm-up, by part of the step.", "part"),
)
REQUEST_HISTOGRAMS = (
    histogram(
        "time_to_first_token_seconds", "time to first token",
        "From a request's arrival at the front until its first token.",
    ),
    histogram(
        "inter_token_latency_seconds", "inter-token",
        "Between one token of a completion and the next.",
    ),
    histogram(
        "request_time_per_output_token_seconds", "inter-token",
        "A completion's mean time per token after the first.",
    ),
    histogram(
        "e2e_request_latency_seconds", "request latency",
        "From a request's arrival at the front until its last token.",
    ),
    histogram(
        "request_queue_time_seconds", "request latency",
        "From a request's arrival in the core until it was scheduled.",
    ),
    histogram(
        "request_prefill_time_seconds", "request latency",
        "From a request's scheduling until its first token.",
    ),
    histogram(
        "request_decode_time_seconds", "request latency",
        "From a request's first token until its last one.",
    ),
    histogram(
        "request_inference_time_seconds", "request latency",
        "From a request's scheduling until its last token.",
    ),
    histogram("request_prompt_tokens", REQUEST_TOKENS, "Prompt tokens of a request."),
    histogram("request_generation_tokens", REQUEST_TOKENS, "Tokens generated for a completion."),
    histogram(
        "request_max_num_generation_tokens", REQUEST_TOKENS,
        "Tokens of a request's longest completion.",
    ),
    histogram("request_params_max_tokens", REQUEST_TOKENS, "The request parameter max_tokens."),
    histogram(
        "request_prefill_kv_computed_tokens", REQUEST_TOKENS,
        "Prompt tokens of a request that were not found in a cache.",
    ),
    histogram("request_params_n", "small integers", "The request parameter n."),
    histogram("request_num_preemptions", "preemptions", "How often a request was preempted."),
)  # fmt: skip
STEP_HISTOGRAMS = (
    histogram("iteration_tokens_total", "step tokens", "Tokens that one step runs."),
    histogram("step_seconds", "step seconds", "Seconds of a step, by phase.", "phase"),
)
# With kv_cache_metrics=True only, and of a sample of the blocks: fields of `BlockTimes`.
BLOCK_HISTOGRAMS = {
    "lifetime": histogram(
        "kv_block_lifetime_seconds", "block residency",
        "From a KV cache block's allocation until its eviction.",
    ),
    "idle_before_evict": histogram(
        "kv_block_idle_before_evict_seconds", "block residency",
        "From a KV cache block's last use until its eviction.",
    ),
    "reuse_gap": histogram(
        "kv_block_reuse_gap_seconds", "block residency",
        "Between one use of a KV cache block for a further request and the next.",
    ),
}  # fmt: skip
METRICS = (
    *GAUGES, *COUNTERS, *REQUEST_HISTOGRAMS, *STEP_HISTOGRAMS, *BLOCK_HISTOGRAMS.values(),
)  # fmt: skip
