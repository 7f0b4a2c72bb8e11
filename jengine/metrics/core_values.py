"""The values of metrics that come from a core's counts, by name and by the value of their label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jengine.counts import Counts
from jengine.metrics.cost import CostModel, StepCost

# The value of the label -> number; "" where a metric has no label of its own.
Values = Mapping[str, float]
NO_COST = StepCost(0.0, 0.0, 0.0)


def plain(number: float) -> Values:
    """The values of a metric without labels of its own."""
    return {"": number}


def waiting_by_reason(counts: Counts) -> Values:
    """Waiting requests; they add up to `num_requests_waiting`."""
    return {"capacity": counts.waiting - counts.deferred, "deferred": counts.deferred}


def prompt_tokens_by_source(counts: Counts) -> Values:
    """Prompt tokens; they add up to `prompt_tokens`."""
    return {
        "local_compute": counts.prompt_tokens - counts.cached_prompt_tokens,
        "local_cache_hit": counts.cached_prompt_tokens - counts.outside_prompt_tokens,
        "external_kv_transfer": counts.outside_prompt_tokens,
    }


def accepted_by_position(counts: Counts) -> Values:
    """Accepted draft tokens; the first draft of a step has position 0."""
    return {str(place): number for place, number in enumerate(counts.drafts.accepted_at)}


def padding_share(counts: Counts) -> float:
    """Share of computed tokens that were padding."""
    programs = counts.programs
    if not programs.computed_tokens:
        return 0.0
    return 1 - programs.useful_tokens / programs.computed_tokens


def sleep_state(counts: Counts) -> Values:
    """One of three states is 1."""
    states = ("awake", "weights_offloaded", "discard_all")
    return {name: int(counts.sleep_level == level) for level, name in enumerate(states)}


# The cache of images is not counted yet.
FROM_COUNTS: dict[str, Callable[[Counts], Values]] = {
    "num_requests_running": lambda counts: plain(counts.running),
    "num_requests_waiting": lambda counts: plain(counts.waiting),
    "num_requests_waiting_by_reason": waiting_by_reason,
    "kv_cache_usage_perc": lambda counts: plain(counts.cache_usage),
    "kv_offload_cpu_cache_usage_perc": lambda counts: plain(counts.copies.usage),
    "engine_sleep_state": sleep_state,
    "last_step_age_seconds": lambda counts: plain(counts.last_step_age),
    "weight_version": lambda counts: plain(counts.weights_version),
    "padding_waste_ratio": lambda counts: plain(padding_share(counts)),
    "prompt_tokens": lambda counts: plain(counts.prompt_tokens),
    "prompt_tokens_by_source": prompt_tokens_by_source,
    "prompt_tokens_cached": lambda counts: plain(counts.cached_prompt_tokens),
    "generation_tokens": lambda counts: plain(counts.generation_tokens),
    "num_preemptions": lambda counts: plain(counts.preemptions),
    "prefix_cache_queries": lambda counts: plain(counts.prefix_queries),
    "prefix_cache_hits": lambda counts: plain(counts.prefix_hits),
    "external_prefix_cache_queries": lambda counts: plain(counts.outside_queries),
    "external_prefix_cache_hits": lambda counts: plain(counts.outside_hits),
    "kv_offload_load_bytes": lambda counts: plain(counts.copies.loaded_bytes),
    "kv_offload_store_bytes": lambda counts: plain(counts.copies.stored_bytes),
    "kv_connector_fetched_blocks": lambda counts: plain(counts.copies.fetched),
    "kv_connector_failed_blocks": lambda counts: plain(counts.copies.failed),
    "mm_cache_queries": lambda _: plain(0),
    "mm_cache_hits": lambda _: plain(0),
    "corrupted_requests": lambda counts: plain(counts.corrupted),
    "spec_decode_num_drafts": lambda counts: plain(counts.drafts.drafts),
    "spec_decode_num_draft_tokens": lambda counts: plain(counts.drafts.drafted),
    "spec_decode_num_accepted_tokens": lambda counts: plain(counts.drafts.accepted),
    "spec_decode_num_accepted_tokens_per_pos": accepted_by_position,
    "compile": lambda counts: dict(counts.programs.compiles),
    "compile_seconds": lambda counts: plain(counts.programs.seconds),
    "unexpected_recompiles": lambda counts: plain(counts.programs.unexpected),
    "step_compile_wait_seconds": lambda counts: plain(counts.programs.awaited_seconds),
    "late_compiles": lambda counts: dict(counts.programs.late),
}
FROM_COST: dict[str, Callable[[StepCost], float]] = {
    "estimated_flops_per_gpu": lambda cost: cost.operations,
    "estimated_read_bytes_per_gpu": lambda cost: cost.read,
    "estimated_write_bytes_per_gpu": lambda cost: cost.written,
}


def core_values(counts: Counts, cost: CostModel | None) -> dict[str, Values]:
    """Values of all metrics that derive from a core's counts, by name."""
    spent = NO_COST if cost is None else cost.of(counts)
    values = {name: of(counts) for name, of in FROM_COUNTS.items()}
    return values | {name: plain(of(spent)) for name, of in FROM_COST.items()}
