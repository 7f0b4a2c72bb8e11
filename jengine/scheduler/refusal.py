"""Requests that could never run, refused before they enter: otherwise they would wait for ever.

In: a WireRequest and the limits. Out: nothing, or a RequestError that says what to change.
"""

from __future__ import annotations

from jengine.config import ScheduleConfig
from jengine.errors import RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import WireRequest


def refuse_impossible(wire: WireRequest, config: ScheduleConfig, cache: CacheCoordinator) -> None:
    """Raise a RequestError if no schedule can answer this request."""
    length = len(wire.prompt_token_ids)
    if length == 0 or wire.max_tokens < 1:
        raise RequestError(
            f"A prompt of {length} tokens with max_tokens={wire.max_tokens}: expected at least 1 "
            "of each."
        )
    _refuse_too_long(wire, config)
    if wire.sampling.prompt_logprobs is not None and not wire.skip_reading_prefix_cache:
        raise RequestError(
            "prompt_logprobs with skip_reading_prefix_cache=False: a cached prompt token has no "
            "logits to score. Leave skip_reading_prefix_cache out."
        )
    most = min(config.max_model_len, length + wire.max_tokens) - 1
    if not cache.can_ever_hold(most, min(most, config.largest_chunk)):
        raise RequestError(
            f"The prompt has {length} tokens and max_tokens={wire.max_tokens}; the cache cannot "
            f"hold {most} tokens of one request. Lower max_tokens or enlarge the cache."
        )


def _refuse_too_long(wire: WireRequest, config: ScheduleConfig) -> None:
    length = len(wire.prompt_token_ids)
    if length >= config.max_model_len:
        raise RequestError(
            f"The prompt has {length} tokens; with max_model_len={config.max_model_len} expected "
            f"at most {config.max_model_len - 1}, as an output token needs room."
        )
    if not config.enable_chunked_prefill and length > config.largest_chunk:
        raise RequestError(
            f"The prompt has {length} tokens; without chunked prefill a step takes at most "
            f"{config.largest_chunk}. Raise max_num_batched_tokens or enable chunked prefill."
        )
