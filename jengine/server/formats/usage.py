"""Token usage of responses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UnsetType

from jengine.config import CacheConfig
from jengine.outputs import RequestOutput
from jengine.server.formats.sampling_fields import CommonFields
from jengine.server.settings import ServerSettings


class PromptDetails(msgspec.Struct):
    """OpenAI's prompt_tokens_details: tokens found in the prefix cache, and tokens added to it
    (chat only)."""

    cached_tokens: int
    created_cache_tokens: int | UnsetType | None = None


class CompletionDetails(msgspec.Struct):
    """OpenAI's completion_tokens_details."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts of a request. Details that are not reported are null in a JSON response and
    absent in a stream."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType | None = None
    completion_tokens_details: CompletionDetails | UnsetType | None = None


def usage(
    prompt_tokens: int,
    completion_tokens: int,
    cached: int | None = None,
    reasoning: int | None = None,
    untold: UnsetType | None = None,
    created: int | None = None,
) -> Usage:
    """Build a Usage.

    `untold`: value of details that are not given: None (null, in JSON responses) or UNSET (absent,
    in streams).
    """
    added = untold if created is None else created
    return Usage(
        prompt_tokens,
        prompt_tokens + completion_tokens,
        completion_tokens,
        untold if cached is None else PromptDetails(cached, added),
        untold if reasoning is None else CompletionDetails(min(reasoning, completion_tokens)),
    )


def whole_usage(
    outputs: Sequence[RequestOutput],
    settings: ServerSettings,
    reasoning: int | None = None,
    created: int | None = None,
) -> Usage:
    """Sum the counts of final outputs, one per prompt."""
    written = sum(len(one.token_ids) for output in outputs for one in output.outputs)
    cached = sum(max(output.num_cached_tokens, 0) for output in outputs)
    return usage(
        sum(len(output.prompt_token_ids) for output in outputs),
        written,
        cached if settings.enable_prompt_tokens_details else None,
        reasoning,
        created=created,
    )


def created_cache_tokens(output: RequestOutput, cache: CacheConfig) -> int:
    """Prompt tokens in full blocks that this request added to the prefix cache."""
    if not cache.enable_prefix_caching:
        return 0
    length = len(output.prompt_token_ids)
    return max(length - length % cache.block_size - max(output.num_cached_tokens, 0), 0)


class UsageWanted:
    """When a stream reports usage: never, in the last chunk, or in every chunk."""

    def __init__(self, request: CommonFields, settings: ServerSettings) -> None:
        options, forced = request.stream_options, settings.enable_force_include_usage
        self.at_end = forced or bool(options and options.include_usage)
        self.always = forced or bool(self.at_end and options and options.continuous_usage_stats)
