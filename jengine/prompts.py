"""Types of prompts. A prompt is a string, a list of token ids, or one of these dicts.

Inside the engine every prompt is a TokensPrompt, as `engine.prompt_renderer` makes it.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from jengine.media_spans import MediaSpan

LONGEST_SALT = 1024  # maximum characters of a `cache_salt`


class TextPrompt(TypedDict):
    """A prompt as text. Only requests with the same `cache_salt` share cached prefixes."""

    prompt: str
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[dict[str, Any]]  # see TokensPrompt
    mm_processor_kwargs: NotRequired[dict[str, Any]]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is their text, if known."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    token_type_ids: NotRequired[list[int]]  # for models that read text pairs
    prompt_embeds: NotRequired[bytes]  # rendered: f32[prompt, hidden], in place of the ids
    # Images, {"image": one or a list}: PIL images, arrays of numpy or JAX, paths, bytes of files.
    # Videos, {"video": one or a list}: arrays of frames, lists of pictures, animated pictures (GIF,
    # WebP or PNG), or a tuple of these and {"fps": ...}.
    # Audio, {"audio": (array, sampling_rate)}, or a path or the bytes of a file.
    multi_modal_data: NotRequired[dict[str, Any]]
    mm_processor_kwargs: NotRequired[dict[str, Any]]  # preprocessing options
    media: NotRequired[list[MediaSpan]]  # rendered: spans of images whose placeholders are expanded
    # Beam search: continue from the last block of an earlier such prompt and its answer, or let
    # others continue from this one's, so that each runs one token only.
    forks: NotRequired[bool]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings [tokens, hidden] of numpy or JAX, like the rows of the model's
    embedding before any scale. `prompt` is for display."""

    prompt_embeds: Any
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class ExplicitEncoderDecoderPrompt(TypedDict):
    """Prompts of an encoder-decoder model."""

    encoder_prompt: TextPrompt
    decoder_prompt: str | list[int] | TokensPrompt | None


PromptType = (
    str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | ExplicitEncoderDecoderPrompt
)
