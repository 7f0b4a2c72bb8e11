"""Fields of completion requests, and checks made before any work is done."""

from __future__ import annotations

from typing import Any

from jengine.request_parameters import AmountOrAll
from jengine.server.errors import ApiError
from jengine.server.formats.field_ranges import Prompt
from jengine.server.formats.inputs import one_kind
from jengine.server.formats.sampling_fields import CommonFields, check_common
from jengine.server.settings import ServerSettings


class CompletionRequest(CommonFields, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: Prompt | None = None  # narrowed by `prompts_of`
    suffix: str | None = None
    logprobs: AmountOrAll | None = None


def check_completion(request: CompletionRequest, settings: ServerSettings) -> None:
    """Raise ApiError for combinations of fields that this server cannot answer."""
    check_common(request, settings)
    if request.suffix:
        raise ApiError(
            400,
            "suffix: filling in the middle is not supported. Leave it out.",
            param="suffix",
        )
    if request.best_of not in (None, 1):
        raise ApiError(
            400,
            f"best_of={request.best_of}: expected 1. Ask for n answers and choose the best.",
            param="best_of",
        )
    scores_only = request.echo and request.max_tokens == 0
    if request.max_tokens is not None and request.max_tokens < 1 and not scores_only:
        raise ApiError(
            400,
            f"max_tokens={request.max_tokens}: expected at least 1, or 0 with echo=true.",
            param="max_tokens",
        )
    if request.logprob_token_ids:
        _check_own_ids(request, scores_only=bool(scores_only))
    if request.logprobs is not None and request.logprobs < -1:
        raise ApiError(
            400, f"logprobs={request.logprobs}: expected 0 or more, or -1 for all.",
            param="logprobs",
        )  # fmt: skip


def _check_own_ids(request: CompletionRequest, *, scores_only: bool) -> None:
    if scores_only:
        raise ApiError(
            400,
            "`logprob_token_ids` is not supported when `echo=True` and `max_tokens=0` because no "
            "output tokens are generated.",
            param="logprob_token_ids",
        )
    if request.logprobs is None:
        raise ApiError(
            400, "when using `logprob_token_ids`, `logprobs` must be set.",
            param="logprob_token_ids",
        )  # fmt: skip


def prompts_of(request: CompletionRequest, settings: ServerSettings) -> list[str | list[int]]:
    """Return the prompts as a list; each is a text or a list of token ids."""
    given = request.prompt
    if given is None or given in ("", []):
        raise ApiError(
            400, "prompt is missing or empty; expected a text or token ids.", param="prompt"
        )
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [one_kind(given, int, "prompt")]
    if len(given) > settings.max_prompts:
        raise ApiError(
            400,
            f"prompt has {len(given)} prompts; at most {settings.max_prompts} are allowed in one "
            "request.",
            param="prompt",
        )
    prompts: list[Any] = one_kind(given, type(given[0]), "prompt")
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise ApiError(400, f"prompt[{index}] is empty.", param=f"prompt[{index}]")
    return prompts
