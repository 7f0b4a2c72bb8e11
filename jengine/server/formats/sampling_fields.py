"""Fields shared by completion and chat requests, and the SamplingParams they make.

In: decoded JSON. Out: SamplingParams or BeamSearchParams, and Tokenization. null means unset
everywhere: then the model's generation settings apply, else the API's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from jengine.beam_search import BeamSearchParams
from jengine.prompts import LONGEST_SALT
from jengine.request_parameters import AmountOrAll, Given, given_on, struct_of
from jengine.sampling_params import KV_TRANSFER, PARAMETERS, RequestOutputKind, SamplingParams
from jengine.server.errors import ApiError
from jengine.server.formats.beams import beam_search_params, check_beams
from jengine.server.formats.field_ranges import (
    Priority,
    RequestId,
    ResponseFormat,
    Salt,
    Side,
)
from jengine.server.formats.structured import structured_outputs
from jengine.server.settings import ServerSettings
from jengine.text.tokenization import Tokenization, checked_tokenization

# Fields with the same name in SamplingParams.
SAMPLING = tuple(given_on(PARAMETERS, Given.TEXT))
# Fields of unsupported features; SamplingParams refuses values other than the neutral one.
UNBUILT = (
    "best_of", "watermarking",
)  # fmt: skip


class StreamOptions(msgspec.Struct, kw_only=True):
    """OpenAI's `stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


if TYPE_CHECKING:

    class SampledFields(msgspec.Struct, kw_only=True):
        """Sampling parameters that are read from bodies by name."""

        temperature: float | None = None
        n: int | None = None
        stop: str | list[str] | None = None
        max_tokens: int | None = None
        prompt_logprobs: int | None = None
        ignore_eos: bool | None = None
        skip_special_tokens: bool | None = None
        include_stop_str_in_output: bool | None = None
        stream_interval: int | None = None
        thinking_token_budget: int | None = None
        logprob_token_ids: list[int] | None = None

else:
    SampledFields = struct_of(PARAMETERS, Given.TEXT)


class CommonFields(SampledFields, kw_only=True):
    """Fields of both /v1/completions and /v1/chat/completions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: AmountOrAll | None = None
    truncation_side: Side | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    echo: bool | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None
    cache_salt: Salt | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None  # for host logits processors
    kv_transfer_params: dict[str, Any] | None = None  # for the engine's KV connector
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    # Unsupported; SamplingParams refuses values other than the neutral one.
    best_of: int | None = None
    watermarking: bool | None = None
    prompt_embeds: Any = None


def check_common(request: CommonFields, settings: ServerSettings) -> None:
    """Raise ApiError for field values that this server never supports."""
    if request.n is not None and not 1 <= request.n <= settings.max_n:
        raise ApiError(
            400, f"n={request.n}: expected an integer from 1 to {settings.max_n}.", param="n",
        )  # fmt: skip
    if isinstance(request.stop, list) and len(request.stop) > settings.max_stop_strings:
        raise ApiError(
            400,
            f"stop has {len(request.stop)} strings; at most {settings.max_stop_strings} are "
            "allowed.",
            param="stop",
        )
    options = request.stream_options
    if options is not None and options != StreamOptions() and not request.stream:
        raise ApiError(
            400, "stream_options needs stream=true. Leave it out.", param="stream_options"
        )
    if request.stream and request.prompt_logprobs not in (None, 0):
        raise ApiError(
            400, "prompt_logprobs cannot be streamed. Set stream=false.", param="prompt_logprobs"
        )
    if request.prompt_embeds is not None:
        raise ApiError(
            400,
            "prompt_embeds is not supported, as it would have to be deserialized. Send text or "
            "token ids as prompt.",
            param="prompt_embeds",
        )
    _check_salt(request.cache_salt)
    check_beams(request)
    structured_outputs(request)  # validated before any work is done


def _check_salt(salt: str | None) -> None:
    if salt is None:
        return
    if not 0 < len(salt) <= LONGEST_SALT or not salt.isprintable():
        raise ApiError(
            400,
            f"cache_salt: expected 1 to {LONGEST_SALT} characters, none of them a control "
            "character.",
            param="cache_salt",
        )


def tokenization(request: CommonFields) -> Tokenization:
    """Tokenizer options of the prompt (special tokens, truncation)."""
    return checked_tokenization(
        {
            "truncate_prompt_tokens": request.truncate_prompt_tokens,
            "truncation_side": request.truncation_side,
            "add_special_tokens": request.add_special_tokens,
        }
    )


def sampling_params(
    request: CommonFields,
    defaults: Mapping[str, Any],
    settings: ServerSettings,
    **chosen: Any,
) -> SamplingParams | BeamSearchParams:
    """Build SamplingParams or BeamSearchParams from the body and the server's defaults.

    Args:
        chosen: values that each endpoint computes itself, such as max_tokens.
    """
    if request.use_beam_search:
        return beam_search_params(request, defaults, chosen["max_tokens"])
    named = {name: getattr(request, name) for name in (*SAMPLING, *UNBUILT)}
    if named["logprob_token_ids"]:
        chosen["logprobs"] = None  # the request's number is ignored
    else:
        named["logprob_token_ids"] = None  # an empty list means unset
    given = {name: value for name, value in named.items() if value is not None}
    usual = {name: value for name, value in defaults.items() if name != "max_tokens"}
    chosen.setdefault("structured_outputs", structured_outputs(request))
    chosen.setdefault("extra_args", extra_args(request))
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    interval = max(request.stream_interval or 1, settings.stream_interval)
    if request.stream_interval is not None and request.stream_interval < 1:
        interval = request.stream_interval  # refused by SamplingParams
    chosen |= {"output_kind": kind, "stream_interval": interval}
    return SamplingParams.from_optional(**{**usual, **given, **chosen})


def extra_args(request: CommonFields) -> dict[str, Any] | None:
    """Arguments for the engine's logits processors and its KV connector."""
    if request.kv_transfer_params is None:
        return request.vllm_xargs
    return {**(request.vllm_xargs or {}), KV_TRANSFER: request.kv_transfer_params}


def answer_length(
    asked: int | None,
    usual: int | None,
    prompt_tokens: int,
    max_model_len: int,
    field: str = "max_tokens",
) -> int:
    """Return max_tokens: as `field` asks, else the default, capped by the context length."""
    room = max_model_len - prompt_tokens
    if asked is not None and asked > max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {asked} output tokens and your prompt contains {prompt_tokens} input "
            f"tokens. Lower {field} or leave it out.",
            param=field,
        )
    wanted = usual if asked is None else asked
    return room if wanted is None else min(wanted, room)
