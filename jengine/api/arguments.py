"""Arguments of `generate` and `chat` as lists, one item per prompt. No jax.

In: prompts, messages and parameters as users write them. Out: lists, or an error that says what was
expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jengine.errors import RequestError, UnsupportedFeature, unknown_argument
from jengine.sampling_params import RequestOutputKind, SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None
# Later features, as arguments of `generate`, `chat` and their kin.
LATER_ARGUMENTS = {
    "lora_request": "LoRA adapters",
    "mm_processor_kwargs": "multimodal input",
    "chat_template_content_format": "choosing the content format of chat templates",
    "trace_headers": "tracing",
    "data_parallel_rank": "choosing a replica",
}
CHAT_OPTIONS = (
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tools",
    "chat_template_kwargs",
    "tokenization_kwargs",
)
ALWAYS_KNOWN = ("sampling_params", "use_tqdm", "priority")


def refuse_later(owner: str, given: Mapping[str, Any], known: Iterable[str] = ()) -> None:
    """Refuse arguments that do not exist or whose feature is not built."""
    for name, value in given.items():
        if name not in LATER_ARGUMENTS:
            raise unknown_argument(owner, name, [*known, *ALWAYS_KNOWN])
        if value is not None and (name, value) != ("chat_template_content_format", "auto"):
            raise UnsupportedFeature(
                f"{owner}({name}=...): {LATER_ARGUMENTS[name]} is not built yet; leave {name} out."
            )


def chat_options(owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of chat templates among the arguments; others are refused."""
    others = {name: value for name, value in given.items() if name not in CHAT_OPTIONS}
    refuse_later(owner, others, CHAT_OPTIONS)
    return {name: value for name, value in given.items() if name in CHAT_OPTIONS}


def as_list(prompts: Any) -> list[Any]:
    """One prompt, many or none, as a list of prompts."""
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


def final_only(params: SamplingParams) -> SamplingParams:
    """The same parameters for a caller who reads only the last output of each request."""
    if not isinstance(params, SamplingParams):
        return params  # the input processor says what is wrong with it
    return params.settled(output_kind=RequestOutputKind.FINAL_ONLY)
