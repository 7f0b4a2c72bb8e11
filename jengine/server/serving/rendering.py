"""Prompts of requests to token ids, in threads of their own and with a deadline.

In: texts, token ids or conversations. Out: TokensPrompts that fit the model's context. Tokenizing a
long text and running a template take long, so the event loop never does either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from jengine.engine.limits import Limits
from jengine.engine.prompt_renderer import LONGEST_TOKEN, PromptRenderer
from jengine.errors import ContextOverflow
from jengine.prompts import TokensPrompt
from jengine.server.errors import ApiError
from jengine.text.chat_images import ImagePart
from jengine.text.tokenization import Tokenization
from jengine.text.tokenizer import Tokenizer

T = TypeVar("T")
THREADS = 2


class Rendering:
    """The renderer of an engine behind a thread pool."""

    def __init__(self, prompts: PromptRenderer, timeout: float) -> None:
        self._prompts = prompts
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(THREADS, "jengine-render")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; an error where the engine has none."""
        return self._prompts.required_tokenizer()

    @property
    def limits(self) -> Limits:
        """What prompts are checked against."""
        return self._prompts.limits

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of a function that runs in a thread, or 400 after the deadline."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                return await loop.run_in_executor(self._threads, work, *arguments)
        except TimeoutError as error:
            raise ApiError(
                400,
                f"Rendering and tokenizing the prompt took longer than {self._timeout:g} seconds "
                "and was given up. Send a shorter prompt.",
            ) from error

    def prompt(self, given: str | list[int], how: Tokenization) -> TokensPrompt:
        """A text or token ids as a prompt that fits."""
        if isinstance(given, str):
            self._check_length(given, how)
        else:
            self.limits.in_vocabulary("prompt", given)
        return self._prompts.render(given, how)

    def conversation(
        self,
        text: str,
        how: Tokenization,
        images: Sequence[ImagePart] = (),
        options: Mapping[str, Any] | None = None,
    ) -> TokensPrompt:
        """A conversation as its template wrote it, with its images, as a prompt that fits."""
        self._check_length(text, how)
        return self._prompts.render_chat(text, how, images, options)

    def without_images(self, messages: Any) -> tuple[Any, list[ImagePart]]:
        """The messages with a mark in place of each image, if the model takes any."""
        return self._prompts.without_images(messages)

    @property
    def image_text(self) -> str | None:
        """The text that stands for an image; None: the model takes none."""
        return self._prompts.image_text

    def audio(self, ids: list[int], samples: np.ndarray) -> TokensPrompt:
        """The beginning of an answer, with the audio that it is about at the model's rate."""
        return self._prompts.render(
            {"prompt_token_ids": ids, "multi_modal_data": {"audio": samples}}
        )

    def close(self) -> None:
        """Let the threads end when they are idle."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check_length(self, text: str, how: Tokenization) -> None:
        """Refuse a text that cannot fit, before it is tokenized."""
        most = self.limits.max_model_len
        if how.truncate_prompt_tokens is None and len(text) > LONGEST_TOKEN * most:
            raise ContextOverflow(most, f"has {len(text)} characters, which never fit")
