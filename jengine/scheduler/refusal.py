"""Refuses requests that could never be scheduled and would wait forever.

In: a WireRequest and the limits. Out: nothing, or a RequestError that says what to change.
"""

from __future__ import annotations

from jengine.config import ScheduleConfig
from jengine.errors import RequestError
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.request import WireRequest


def refuse_impossible(wire: WireRequest, config: ScheduleConfig, cache: CacheCoordinator) -> None:
    """Raise RequestError if no schedule can serve this request."""
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
    if wire.adapter and not config.max_loras:
        raise RequestError("A request with an adapter: create the engine with enable_lora=True.")
    if wire.media:
        _refuse_images(wire, config)
    most = min(config.max_model_len, length + wire.max_tokens) - config.answer_room
    if not cache.can_ever_hold(most, min(most, config.largest_chunk)):
        raise RequestError(
            f"The prompt has {length} tokens and max_tokens={wire.max_tokens}; the cache cannot "
            f"hold {most} tokens of one request. Lower max_tokens or enlarge the cache."
        )


def _refuse_images(wire: WireRequest, config: ScheduleConfig) -> None:
    sizes = {span.key: span.length for span in wire.media}
    if sum(sizes.values()) > config.encoder_tokens:
        raise RequestError(
            f"The images or audio of the prompt take {sum(sizes.values())} tokens; expected at "
            f"most {config.encoder_tokens}, for which the device has room at a time. Give fewer or "
            "smaller images, or raise max_num_batched_tokens."
        )
    longest = max((span.length for span in wire.media if span.is_whole), default=0)
    if longest > config.largest_chunk:
        raise RequestError(
            f"An image of the prompt takes {longest} tokens, which must run in one step; a step "
            f"takes at most {config.largest_chunk}. Raise max_num_batched_tokens."
        )


def _refuse_too_long(wire: WireRequest, config: ScheduleConfig) -> None:
    length = len(wire.prompt_token_ids)
    most = config.max_model_len - config.answer_room
    if length > most:
        why = ", as an output token needs room" if config.answer_room else ""
        raise RequestError(
            f"The prompt has {length} tokens; with max_model_len={config.max_model_len} expected "
            f"at most {most}{why}."
        )
    if not config.enable_chunked_prefill and length > config.largest_chunk:
        raise RequestError(
            f"The prompt has {length} tokens; without chunked prefill a step takes at most "
            f"{config.largest_chunk}. Raise max_num_batched_tokens or enable chunked prefill."
        )
