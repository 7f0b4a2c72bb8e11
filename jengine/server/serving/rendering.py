"""Renders and tokenizes prompts off the event loop, with a deadline.

In: texts, token ids or conversations. Out: TokensPrompts that fit the context. Short texts are
tokenized in threads; long ones, lists of texts, and a client's own templates in processes that can
be killed; media in threads of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import LONGEST_TOKEN, PromptRenderer
from jengine.errors import ContextOverflow
from jengine.prompts import TokensPrompt
from jengine.server.http.text_limits import TextLimits, text_size
from jengine.server.serving.work_threads import ThreadLane
from jengine.text.chat_images import ImagePart
from jengine.text.confined_tokenizer import ConfinedTokenizer
from jengine.text.tokenization import Tokenization
from jengine.text.tokenizer import SHORT, Tokenizer

THREADS = 2
FEWEST, MOST = 2, 8  # bounds of the number of processes for long texts, one per CPU core
# Memory limit of these processes: minimum, and bytes per allowed character.
LEAST_BYTES, CHAR_BYTES = 2**30, 512


class Rendering:
    """The engine's prompt renderer, run in thread pools."""

    def __init__(
        self, prompts: PromptRenderer, limits: TextLimits, timeout: float, fronts: int = 1
    ) -> None:
        """`fronts`: number of API processes that share the CPU cores."""
        self.text_limits = limits
        self._prompts = prompts
        processes = min(max((os.cpu_count() or 1) // fronts, FEWEST), MOST)
        self.short = ThreadLane("short texts", THREADS, timeout)
        self.long = ThreadLane("long texts", processes, timeout, confined=True)
        self.media = ThreadLane("media", THREADS, timeout)
        self._confined: ConfinedTokenizer | None = None
        if prompts.tokenizer is not None:
            self._confined = prompts.tokenizer.confined = ConfinedTokenizer(
                prompts.tokenizer.hf,
                size=processes,
                seconds=timeout,
                most_bytes=max(LEAST_BYTES, CHAR_BYTES * limits.chars),
            )

    @property
    def lanes(self) -> tuple[ThreadLane, ...]:
        return self.short, self.long, self.media

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises if the engine has none."""
        return self._prompts.required_tokenizer()

    @property
    def limits(self) -> Limits:
        """Limits of prompts (context length, vocabulary)."""
        return self._prompts.limits

    def lane(self, given: Any, *, doubtful: bool = False) -> ThreadLane:
        """Choose a pool by the size of the texts in `given`. `doubtful`: work that may be long
        whatever its size."""
        short = SHORT if self._prompts.tokenizer is None else self._prompts.tokenizer.short
        return self.long if doubtful or text_size(given, short) > short else self.short

    async def tokenized(self, given: str | list[int], how: Tokenization) -> TokensPrompt:
        """Tokenize and check the length, in a pool."""
        return await self.lane(given).run(self.prompt, given, how)

    def prompt(self, given: str | list[int], how: Tokenization) -> TokensPrompt:
        """`tokenized`, in the calling thread."""
        if isinstance(given, str):
            self._check_length(given, how)
        else:
            self.limits.in_vocabulary("prompt", given)
        return self._prompts.render(given, how)

    def conversation(self, text: str, how: Tokenization) -> TokensPrompt:
        """Tokenize a rendered conversation and check its length."""
        self._check_length(text, how)
        return self._prompts.render_chat(text, how)

    async def with_images(
        self,
        prompt: TokensPrompt,
        images: Sequence[ImagePart],
        options: Mapping[str, Any] | None,
    ) -> TokensPrompt:
        """Expand image placeholders and attach the processed images."""
        if not images and not options:
            return prompt  # the usual case
        return await self.media.run(self._prompts.with_images, prompt, images, options)

    async def text_of(self, tokens: list[int]) -> str:
        if self._confined is None or len(tokens) <= self.tokenizer.short:
            return await self.short.run(self.tokenizer.decode, tokens, False)
        return await self.long.run(self._confined.decode, tokens, False)

    def without_images(self, messages: Any) -> tuple[Any, list[ImagePart]]:
        """Replace images in messages by marks, if the model takes images; also returns
        the images."""
        return self._prompts.without_images(messages)

    @property
    def image_text(self) -> str | None:
        """The image placeholder of the model's chat template; None if it takes no images."""
        return self._prompts.image_text

    def audio(self, ids: list[int], samples: np.ndarray) -> TokensPrompt:
        """Decoder prompt with the audio that it transcribes, sampled at the model's rate."""
        return self._prompts.render(
            {"prompt_token_ids": ids, "multi_modal_data": {"audio": samples}}
        )

    def close(self) -> None:
        """Cancel pending work and end the processes."""
        for lane in self.lanes:
            lane.close()
        if self._confined is not None:
            self._confined.close()
            if self.tokenizer.confined is self._confined:
                self.tokenizer.confined = None

    def _check_length(self, text: str, how: Tokenization) -> None:
        """Refuse, before tokenizing, a text that cannot fit into the context."""
        most = self.limits.max_model_len
        if how.truncate_prompt_tokens is None and len(text) > LONGEST_TOKEN * most:
            raise ContextOverflow(most, f"has {len(text)} characters, which never fit")
        self.text_limits.check_text(text, "The prompt")
