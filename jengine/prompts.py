"""Types of prompts. A prompt is a string, a list of token ids, or one of these dicts.

Inside the engine every prompt is a TokensPrompt, as `engine.prompt_renderer` makes it.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text. Only requests with the same `cache_salt` share cached prefixes."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text that they came from, if known."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptType = str | list[int] | TextPrompt | TokensPrompt
