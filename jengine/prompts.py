"""Types of prompts. A prompt is a string, a list of token ids, or one of these dicts.

Inside the engine every prompt is a TokensPrompt, as `engine.prompt_renderer` makes it.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from jengine.media_spans import MediaSpan

LONGEST_SALT = 1024  # characters of a `cache_salt`


class TextPrompt(TypedDict):
    """A prompt as text. Only requests with the same `cache_salt` share cached prefixes."""

    prompt: str
    cache_salt: NotRequired[str]
    multi_modal_data: NotRequired[dict[str, Any]]  # see TokensPrompt
    mm_processor_kwargs: NotRequired[dict[str, Any]]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text that they came from, if known."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    token_type_ids: NotRequired[list[int]]  # of models that read pairs of texts
    prompt_embeds: NotRequired[bytes]  # rendered: f32[prompt, hidden], which the ids stand for
    # Images, {"image": one or a list}: PIL images, arrays of numpy or JAX, paths, bytes of files.
    # Videos, {"video": one or a list}: arrays of frames, lists of pictures, animated pictures (GIF,
    # WebP or PNG), or a tuple of these and {"fps": ...}.
    # Audio, {"audio": (array, sampling_rate)}, or a path or the bytes of a file.
    multi_modal_data: NotRequired[dict[str, Any]]
    mm_processor_kwargs: NotRequired[dict[str, Any]]  # how they are resized and scaled
    media: NotRequired[list[MediaSpan]]  # rendered: the images, whose tokens are in the ids
    # Whether it goes on from all tokens of an earlier prompt and its answer that said so too, or
    # others go on from its own, as in a search over answers: each then runs one token.
    forks: NotRequired[bool]


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings [tokens, hidden] of numpy or JAX: rows as the model's own embedding
    would give them, before any scale. `prompt` is only shown."""

    prompt_embeds: Any
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class ExplicitEncoderDecoderPrompt(TypedDict):
    """What an encoder reads, and how the answer of its decoder begins."""

    encoder_prompt: TextPrompt
    decoder_prompt: str | list[int] | TokensPrompt | None


PromptType = (
    str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | ExplicitEncoderDecoderPrompt
)
