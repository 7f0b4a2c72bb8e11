"""Beam search requests: unsupported fields are refused, the rest becomes BeamSearchParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jengine.beam_search import BeamSearchParams
from jengine.server.errors import ApiError

if TYPE_CHECKING:  # avoids an import cycle
    from jengine.server.formats.sampling_fields import CommonFields

USUAL_TEMPERATURE = 1.0


def check_beams(request: CommonFields) -> None:
    """Raise ApiError for fields that beam search does not support, or beam settings without it."""
    if not request.use_beam_search:
        if request.length_penalty not in (None, 1.0):
            raise ApiError(
                400,
                f"length_penalty={request.length_penalty:g} needs use_beam_search=true. Set it, or "
                "leave length_penalty out.",
                param="length_penalty",
            )
        return
    plain_text = (request.response_format or {}).get("type", "text") == "text"
    impossible = {
        "echo": bool(request.echo),
        "prompt_logprobs": request.prompt_logprobs is not None,
        "response_format": not plain_text,
        "structured_outputs": request.structured_outputs is not None,
        "stream": bool(request.stream),
        "logprob_token_ids": bool(request.logprob_token_ids),
        "thinking_token_budget": request.thinking_token_budget not in (None, -1),
    }
    for name, is_asked in impossible.items():
        if is_asked:
            raise ApiError(
                400,
                f"{name} is not supported with beam search. Leave {name} or use_beam_search out.",
                param=name,
            )


def beam_search_params(
    request: CommonFields, defaults: Mapping[str, Any], max_tokens: int
) -> BeamSearchParams:
    """Build BeamSearchParams, with n beams."""
    temperature = request.temperature
    if temperature is None:
        temperature = defaults.get("temperature", USUAL_TEMPERATURE)
    skip = request.skip_special_tokens
    return BeamSearchParams(
        beam_width=1 if request.n is None else request.n,
        max_tokens=max_tokens,
        ignore_eos=bool(request.ignore_eos),
        temperature=temperature,
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=True if skip is None else skip,
    )
