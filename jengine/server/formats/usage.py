"""Token counts of an answer, as responses have them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UnsetType

from jengine.config import CacheConfig
from jengine.outputs import RequestOutput
from jengine.server.formats.sampling_fields import CommonFields
from jengine.server.settings import ServerSettings


class PromptDetails(msgspec.Struct):
    """How many tokens of the prompts were found in the cache, and how many were added to it, which
    completions do not tell."""

    cached_tokens: int
    created_cache_tokens: int | UnsetType | None = None


class CompletionDetails(msgspec.Struct):
    """How many tokens of the answers are reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """How many tokens were read and written. A whole answer has null for details that are not told,
    a stream leaves them out."""

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
    """The counts of a request: `cached`, `created` and `reasoning`, or `untold` where they are not
    to be."""
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
    """The counts of final outputs, one for each prompt."""
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
    """The tokens of its prompt that a request has added to the prefix cache: whole blocks."""
    if not cache.enable_prefix_caching:
        return 0
    length = len(output.prompt_token_ids)
    return max(length - length % cache.block_size - max(output.num_cached_tokens, 0), 0)


class UsageWanted:
    """Which usage a stream brings: at its end, with every chunk, or none."""

    def __init__(self, request: CommonFields, settings: ServerSettings) -> None:
        options, forced = request.stream_options, settings.enable_force_include_usage
        self.at_end = forced or bool(options and options.include_usage)
        self.always = forced or bool(self.at_end and options and options.continuous_usage_stats)
