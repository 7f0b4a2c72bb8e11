"""Normalises arguments of `generate` and `chat` to lists, one item per prompt. No jax.

In: prompts, messages and parameters as users write them. Out: lists, or an error that says what was
expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jengine.adapters import LoRARequest
from jengine.errors import RequestError, UnsupportedFeature, unknown_argument
from jengine.pooling_params import PoolingParams
from jengine.sampling_params import RequestOutputKind, SamplingParams

AnyParams = SamplingParams | PoolingParams
Params = AnyParams | Sequence[AnyParams] | None
Loras = LoRARequest | Sequence[LoRARequest | None] | None
# vLLM arguments that only AsyncLLM.generate takes.
OF_ASYNC_GENERATE = ("trace_headers", "data_parallel_rank")
CHAT_OPTIONS = (
    "chat_template",
    "chat_template_content_format",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template_kwargs",
    "tokenization_kwargs",
    "mm_processor_kwargs",
)
ALWAYS_KNOWN = ("sampling_params", "use_tqdm", "priority", "lora_request")


class RequestArguments(NamedTuple):
    """The arguments of one request, before its prompt is tokenized."""

    prompt: Any
    params: AnyParams
    priority: int = 0
    lora_request: LoRARequest | None = None
    taps: int = 0  # number of a set of taps; 0: none


def refuse_others(owner: str, given: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Raise TypeError for unknown keyword arguments, UnsupportedFeature for arguments of AsyncLLM
    only."""
    for name, value in given.items():
        if name not in OF_ASYNC_GENERATE:
            raise unknown_argument(owner, name, [*known, *ALWAYS_KNOWN])
        if value is not None:
            raise UnsupportedFeature(
                f"{owner}({name}=...): AsyncLLM.generate alone takes {name}; leave it out."
            )


def chat_options(
    owner: str, given: Mapping[str, Any], in_order: Sequence[Any] = ()
) -> dict[str, Any]:
    """Options of chat templates, given by name or in the order of vLLM's signature."""
    if len(in_order) > len(CHAT_OPTIONS):
        raise TypeError(
            f"{owner} got {len(in_order)} positional options; it knows {', '.join(CHAT_OPTIONS)}."
        )
    by_order = dict(zip(CHAT_OPTIONS, in_order, strict=False))
    for name in by_order.keys() & given.keys():
        raise TypeError(f"{owner} got multiple values for argument {name!r}.")
    given = {**by_order, **given}
    others = {name: value for name, value in given.items() if name not in CHAT_OPTIONS}
    refuse_others(owner, others, CHAT_OPTIONS)
    return {name: value for name, value in given.items() if name in CHAT_OPTIONS}


def as_list(prompts: Any) -> list[Any]:
    """Normalise one prompt, several or none to a list."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, (bytes, int)) or not hasattr(prompts, "__iter__"):
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; expected a string, a list of token ids, a "
            "dict, or a list of these."
        )
    items = list(prompts)
    if items and all(hasattr(item, "__index__") and not isinstance(item, bool) for item in items):
        return [prompts]  # one prompt of token ids
    return items


def with_media_options(prompts: Any, options: Mapping[str, Any] | None) -> Any:
    """Add `mm_processor_kwargs` to prompts that do not set their own."""
    if options is None:
        return prompts
    return [{"mm_processor_kwargs": options, **as_mapping(one)} for one in as_list(prompts)]


def as_mapping(prompt: Any) -> Mapping[str, Any]:
    """The prompt as a TextPrompt or TokensPrompt dict."""
    if isinstance(prompt, Mapping):
        return prompt
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}


def as_conversations(messages: Any) -> list[Any]:
    """One conversation (a list of messages) or several, as a list of conversations."""
    several = isinstance(messages, list | tuple) and all(map(is_conversation, messages[:1]))
    return list(messages) if several else [messages]


def is_conversation(item: Any) -> bool:
    """Whether an element of `messages` is itself a list of messages."""
    return isinstance(item, Sequence) and not isinstance(item, str)


def spread(name: str, given: Any, count: int) -> list[Any]:
    """One value for all prompts, or one per prompt, as a list with one per prompt."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != count:
            raise RequestError(f"{name} has {len(given)} entries for {count} prompts.")
        return list(given)
    return [given] * count


def final_only(params: AnyParams) -> AnyParams:
    """The parameters with `output_kind=FINAL_ONLY`, so that no intermediate outputs are made."""
    if not isinstance(params, SamplingParams):
        return params  # refused by the input processor
    return params.settled(output_kind=RequestOutputKind.FINAL_ONLY)
