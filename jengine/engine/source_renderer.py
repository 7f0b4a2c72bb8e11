"""Renders prompts of encoder-decoder text models.

In: a text, token ids, or `encoder_prompt` and `decoder_prompt`. Out: a TokensPrompt of decoder ids,
with the encoder's ids as a media span. Must not know sampling parameters or requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import PromptRenderer
from jengine.errors import RequestError
from jengine.media_spans import MediaSpan
from jengine.prompts import TokensPrompt
from jengine.text.chat_images import ImagePart
from jengine.text.tokenization import AS_USUAL, Tokenization
from jengine.text.tokenizer import Tokenizer

KEYS = {"encoder_prompt", "decoder_prompt"}


@dataclass(frozen=True)
class SourceRules:
    """Encoder length limit and decoder start tokens.

    `forced` is `forced_bos_token_id`: as in transformers it follows a prompt that is only the start
    token, and counts as part of the prompt.
    """

    positions: int  # longest encoder prompt, in tokens
    start_token: int
    forced: int | None = None


class SourceRenderer(PromptRenderer):
    """Checks encoder prompts against their own limit, and decoder prompts as usual.

    The start token is prepended to decoder prompts that lack it; their text is tokenized without
    special tokens, which are meant for encoders.
    """

    def __init__(self, limits: Limits, tokenizer: Tokenizer | None, sources: SourceRules) -> None:
        super().__init__(limits, tokenizer)
        self.source = sources
        longest = replace(limits, max_model_len=sources.positions, answer_room=0)
        self._read = PromptRenderer(longest, tokenizer)

    def render(self, given: Any, how: Tokenization = AS_USUAL) -> TokensPrompt:
        """Render an encoder prompt, or an encoder and a decoder prompt. Raises RequestError."""
        if isinstance(given, Mapping) and given.get("media"):  # rendered before
            return super().render(given, how)
        source, decoder = given, None
        if isinstance(given, Mapping) and given.keys() & KEYS:
            source, decoder = given.get("encoder_prompt"), given.get("decoder_prompt")
            if given.keys() - KEYS or source is None:
                raise RequestError(
                    "a prompt of an encoder-decoder model is {'encoder_prompt': ..., "
                    f"'decoder_prompt': ...}}; got the keys {', '.join(map(repr, given))}."
                )
        read = self._read.render(source, how)
        if "prompt_embeds" in read:
            raise RequestError("prompt_embeds: the encoder of this model reads tokens alone.")
        prompt = self._decoders(decoder)
        if "cache_salt" in read:
            prompt["cache_salt"] = read["cache_salt"]
        prompt["media"] = [span_of(read["prompt_token_ids"])]
        return prompt

    def _decoders(self, given: Any) -> TokensPrompt:
        """The decoder's prompt; default: start token and forced token."""
        start = self.source.start_token
        if not given:
            prompt = TokensPrompt(prompt_token_ids=[])
        else:
            prompt = super().render(given, replace(AS_USUAL, add_special_tokens=False))
        ids = prompt["prompt_token_ids"]
        ids = ids if ids[:1] == [start] else [start, *ids]
        if len(ids) == 1 and self.source.forced is not None:
            ids = [start, self.source.forced]
        prompt["prompt_token_ids"] = self._checked_ids(ids, AS_USUAL)
        return prompt

    def render_chat(
        self,
        text: str,
        how: Tokenization = AS_USUAL,
        images: Sequence[ImagePart] = (),
        options: Mapping[str, Any] | None = None,
    ) -> TokensPrompt:
        """Refuse: models of this kind are not trained on conversations."""
        raise RequestError(
            "conversations are not supported for a model with an encoder of text. Use "
            "LLM.generate() or /v1/completions."
        )


def span_of(ids: list[int]) -> MediaSpan:
    """The encoder's ids as a media span of the decoder's prompt."""
    values = np.asarray(ids, np.int32).tobytes()
    return MediaSpan(
        offset=0,
        length=len(ids),
        key=sha256(b"text" + values).hexdigest(),
        kind="text",
        grid=(1, 1, len(ids)),
        steps=(0, 0, 0),
        values=values,
    )
