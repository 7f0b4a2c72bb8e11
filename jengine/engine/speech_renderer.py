"""Renders prompts of speech models: decoder prompt and audio.

In: a text or token ids with audio, or `encoder_prompt` and `decoder_prompt`. Out: a TokensPrompt of
decoder ids, with the audio. Must not know sampling parameters or requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import Expands, PromptRenderer
from jengine.errors import RequestError
from jengine.media.speech import SpeechProcessor
from jengine.prompts import TokensPrompt
from jengine.text.tokenization import AS_USUAL, Tokenization
from jengine.text.tokenizer import Tokenizer

KEYS = {"encoder_prompt", "decoder_prompt"}


class SpeechRenderer(PromptRenderer):
    """Requires audio. The tokenizer adds no special tokens: language, task and timestamps are
    tokens of the prompt."""

    adds_special_tokens = False

    def __init__(
        self, limits: Limits, tokenizer: Tokenizer | None, speech: SpeechProcessor
    ) -> None:
        super().__init__(limits, tokenizer)
        self.speech = speech

    @property
    def media(self) -> Expands | None:
        return self.speech

    def render(self, given: Any, how: Tokenization = AS_USUAL) -> TokensPrompt:
        """Render a decoder prompt with its audio. Raises RequestError if there is none."""
        if isinstance(given, Mapping) and any(given.get(key) is not None for key in KEYS):
            given = joined_prompt(given, self.speech.speech.start_token)
        prompt = super().render(given, how)
        if not prompt.get("media"):
            raise RequestError(
                "the prompt has no audio, which the encoder of this model reads. Give "
                "{'prompt': ..., 'multi_modal_data': {'audio': (array, sampling_rate)}}."
            )
        return prompt


def joined_prompt(given: Mapping[str, Any], start: int) -> dict[str, Any]:
    """Merge `encoder_prompt` and `decoder_prompt` into the decoder's with the encoder's audio.
    `start` is the decoder's start token."""
    extra = given.keys() - {"encoder_prompt", "decoder_prompt"}
    encoder, decoder = given.get("encoder_prompt"), given.get("decoder_prompt")
    if extra or not isinstance(encoder, Mapping):
        raise RequestError(
            "a prompt of an encoder-decoder model is {'encoder_prompt': {'prompt': '', "
            "'multi_modal_data': {'audio': ...}}, 'decoder_prompt': '...'}; got "
            f"encoder_prompt of type {type(encoder).__name__}"
            + (f" and also {', '.join(sorted(map(str, extra)))}." if extra else ".")
        )
    if encoder.get("prompt") or encoder.get("prompt_token_ids"):
        raise RequestError(
            "encoder_prompt has a text: the encoder of this model reads audio alone. Leave the "
            "text empty, or put it in decoder_prompt."
        )
    joined = {key: value for key, value in encoder.items() if key.startswith(("multi_", "mm_"))}
    if isinstance(decoder, Mapping):
        return {**decoder, **joined}
    if isinstance(decoder, str) and decoder:
        return {"prompt": decoder, **joined}
    return {"prompt_token_ids": decoder or [start], **joined}
