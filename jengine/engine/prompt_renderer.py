"""Renders users' prompts to validated token ids.

In: a text, token ids, a dict with one of them, or a rendered conversation. Out: a TokensPrompt.
Must not know sampling parameters or requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from jengine.engine.embeds import rendered_again, rendered_embeds
from jengine.engine.limits import Limits
from jengine.errors import ContextOverflow, RequestError, UnsupportedFeature, nearest_name
from jengine.media.processor import MediaProcessor
from jengine.media_spans import MediaSpan
from jengine.prompts import LONGEST_SALT, TokensPrompt
from jengine.sampling_checks import token_ids
from jengine.text.chat_images import ImagePart, without_images
from jengine.text.plain_marks import PlainMarks
from jengine.text.tokenization import AS_USUAL, Side, Tokenization
from jengine.text.tokenizer import Tokenizer

PROMPT_KEYS = (
    "prompt", "prompt_token_ids", "prompt_embeds", "cache_salt", "multi_modal_data",
    "mm_processor_kwargs", "media", "token_type_ids", "encoder_prompt", "decoder_prompt", "forks",
)  # fmt: skip
LATER_PROMPT_KEYS = {"multi_modal_uuids": "names of images"}
# Upper bound of the characters per token, on average over a prompt.
LONGEST_TOKEN = 64


class Expands(Protocol):
    """A media processor: expands placeholders of images or audio in prompts."""

    def expanded(
        self, ids: list[int], data: Any, options: Mapping[str, Any] | None = None
    ) -> tuple[list[int], list[MediaSpan]]:
        """Prompt ids with room for the encoder's embeddings, and the spans that they fill."""
        ...


class PromptRenderer:
    """Tokenizes prompts and checks ids against the model's limits."""

    # Whether tokenizing a text adds the tokenizer's special tokens, by default.
    adds_special_tokens = True

    def __init__(
        self,
        limits: Limits,
        tokenizer: Tokenizer | None,
        images: MediaProcessor | None = None,
    ) -> None:
        self.limits = limits
        self.tokenizer = tokenizer
        self.images = images  # None: the model takes none
        self._marks = PlainMarks(self._media_words)

    @property
    def media(self) -> Expands | None:
        """The media processor, or None if the model takes neither images nor audio."""
        return self.images

    def render(self, given: Any, how: Tokenization = AS_USUAL) -> TokensPrompt:
        """Render a string, a sequence of ids, or a dict with one of them. Raises RequestError."""
        if isinstance(given, Mapping):
            return self._from_dict(given, how)
        if isinstance(given, str):
            return self._from_text(given, how)
        return {"prompt_token_ids": self._checked_ids(given, how)}

    def render_chat(
        self,
        text: str,
        how: Tokenization = AS_USUAL,
        images: Sequence[ImagePart] = (),
        options: Mapping[str, Any] | None = None,
    ) -> TokensPrompt:
        """Render a conversation after its chat template, which wrote the special tokens, with its
        images; `options` are their processor settings."""
        ids = list[int]()
        for part, is_plain in self._marks.parts(text):
            if is_plain:
                ids += self.required_tokenizer().encode_plain(part)
            else:
                own = how if not ids else replace(how, add_special_tokens=False)
                ids += self._encoded(part, own, add_special_tokens=False)
        prompt = TokensPrompt(
            prompt=self._marks.shown(text), prompt_token_ids=self._checked_ids(ids, how)
        )
        return self.with_images(prompt, images, options)

    def with_images(
        self,
        prompt: TokensPrompt,
        images: Sequence[ImagePart],
        options: Mapping[str, Any] | None = None,
    ) -> TokensPrompt:
        """Put a conversation's images into its prompt."""
        if not images:
            self._check_unused(options)
            return prompt
        assert self.images is not None, "images are taken out of messages for models with a tower"
        data: dict[str, list[tuple[Any, str]]] = {}
        for part in images:
            data.setdefault(part.kind, []).append((part.given, part.where))
        opened = self.images.opened(data)
        return self.with_media(prompt, opened, options)

    def without_images(self, messages: Any) -> tuple[Any, list[ImagePart]]:
        """Replace images in messages by placeholders, and escape text that looks like a media
        token; no-op if the model takes no images. Returns the messages and the images."""
        if self.images is None:
            return messages, []
        marked, images = without_images(messages)
        return self._marks.hidden(marked), images

    @property
    def _media_words(self) -> list[str]:
        """Texts of the media tokens, to be escaped in users' texts."""
        if self.images is None or self.tokenizer is None:
            return []
        vision = self.images.vision
        ids = {vision.placeholder, vision.image_token, vision.video_token, vision.start_token,
               vision.end_token} - {None}  # fmt: skip
        known = self.tokenizer.added_tokens
        return [known[one] for one in ids if one in known]

    @property
    def image_text(self) -> str | None:
        """Placeholder text of an image, or None if the model takes none."""
        if self.images is None:
            return None
        vision = self.images.vision
        tokens = (vision.start_token, vision.image_token, vision.end_token)
        tokens = (vision.placeholder,) if vision.wraps else tokens
        ids = [one for one in tokens if one is not None]
        return "".join(map(str, self.required_tokenizer().hf.convert_ids_to_tokens(ids)))

    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises RequestError if the engine has none."""
        if self.tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer (skip_tokenizer_init=True); give token ids instead."
            )
        return self.tokenizer

    def _from_dict(self, given: Mapping[str, Any], how: Tokenization) -> TokensPrompt:
        for key, feature in LATER_PROMPT_KEYS.items():
            if given.get(key) is not None:
                raise UnsupportedFeature(f"{key}: {feature} is not built yet.")
        for key in given.keys() - LATER_PROMPT_KEYS:
            if key not in PROMPT_KEYS:
                raise RequestError(
                    f"a prompt has no key {key!r}; known: {', '.join(PROMPT_KEYS)}."
                    f"{nearest_name(str(key), PROMPT_KEYS)}"
                )
        if given.get("encoder_prompt") is not None or given.get("decoder_prompt") is not None:
            raise RequestError(
                "encoder_prompt and decoder_prompt: this model has no encoder. Give 'prompt'."
            )
        salt = given.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not 0 < len(salt) <= LONGEST_SALT):
            raise RequestError(f"cache_salt: expected a string of 1 to {LONGEST_SALT} characters.")
        text, ids = given.get("prompt"), given.get("prompt_token_ids")
        if given.get("prompt_embeds") is not None:
            prompt = self._from_embeds(given["prompt_embeds"], text, ids)
        elif ids is None:
            prompt = self._from_text(text, how)
        elif text is None:
            prompt = TokensPrompt(prompt_token_ids=self._checked_ids(ids, how))
        elif isinstance(text, str):
            prompt = TokensPrompt(prompt_token_ids=self._checked_ids(ids, how), prompt=text)
        else:
            raise RequestError(f"prompt is a {type(text).__name__}; expected a string.")
        if salt is not None:
            prompt["cache_salt"] = salt
        if given.get("token_type_ids") is not None:
            count = len(prompt["prompt_token_ids"])
            prompt["token_type_ids"] = self._checked_types(given["token_type_ids"], count)
        if given.get("forks"):
            prompt["forks"] = True
        if given.get("media"):  # rendered before
            prompt["media"] = given["media"]
        elif given.get("multi_modal_data"):
            data, options = given["multi_modal_data"], given.get("mm_processor_kwargs")
            return self.with_media(prompt, data, options)
        else:
            self._check_unused(given.get("mm_processor_kwargs"))
        return prompt

    def _check_unused(self, options: Mapping[str, Any] | None) -> None:
        """Validate `mm_processor_kwargs` of a prompt without images."""
        if not options:
            return
        if self.images is None:
            raise RequestError("mm_processor_kwargs: this model takes no images. Leave it out.")
        self.images.check_options(options)

    def with_media(
        self, prompt: TokensPrompt, data: Any, options: Mapping[str, Any] | None = None
    ) -> TokensPrompt:
        """Put `multi_modal_data` into a prompt at its placeholders. Raises RequestError."""
        if self.media is None:
            raise RequestError(
                "multi_modal_data: this model takes no images and no audio. Leave it out, or load "
                "a model with an encoder."
            )
        if "prompt_embeds" in prompt:
            raise RequestError("multi_modal_data with prompt_embeds: give one of them.")
        ids, spans = self.media.expanded(prompt["prompt_token_ids"], data, options)
        prompt["prompt_token_ids"] = self._checked_ids(ids, AS_USUAL)
        prompt["media"] = spans
        self._check_bytes(spans)
        return prompt

    def _check_bytes(self, spans: list[MediaSpan]) -> None:
        size, most = sum(len(span.values) for span in spans), self.limits.most_embeds_bytes
        if most is not None and size > most:
            raise RequestError(
                f"images and audio of the prompt take {size} bytes; expected at most {most} "
                "where the engine core is in another process. Give fewer or smaller ones."
            )

    def render_pair(self, first: str, second: str, how: Tokenization = AS_USUAL) -> TokensPrompt:
        """Render a pair of texts (cross-encoders) in the model's training format."""
        tokenizer, limit = (
            self.required_tokenizer(),
            how.longest(self.limits.max_model_len, self.limits.answer_room),
        )
        most_chars = LONGEST_TOKEN * self.limits.max_model_len
        if limit is None and len(first) + len(second) > most_chars:
            raise ContextOverflow(self.limits.max_model_len, "has too many characters")
        ids, types = tokenizer.encode_pair(first[:most_chars], second[:most_chars], limit)
        prompt = TokensPrompt(prompt_token_ids=self._checked_ids(ids, AS_USUAL))
        if self.limits.token_types and types:
            prompt["token_type_ids"] = types
        return prompt

    def _checked_types(self, given: Any, count: int) -> list[int]:
        types = plain_ints(given)
        if not self.limits.token_types:
            raise RequestError("token_type_ids: the tokens of this model are of one type.")
        if len(types) != count or not all(0 <= one < self.limits.token_types for one in types):
            raise RequestError(
                f"token_type_ids: expected one number from 0 to {self.limits.token_types - 1} for "
                f"each of {count} tokens."
            )
        return types

    def _from_embeds(self, given: Any, text: Any, ids: Any) -> TokensPrompt:
        if isinstance(given, bytes):
            prompt = rendered_again(given, ids, self.limits)
        elif ids is not None:
            raise RequestError("prompt_token_ids and prompt_embeds were both given; give one.")
        else:
            prompt = rendered_embeds(given, self.limits)
        if text is not None:
            prompt["prompt"] = text
        return prompt

    def _from_text(self, text: Any, how: Tokenization) -> TokensPrompt:
        if not isinstance(text, str):
            raise RequestError(
                f"a prompt is a {type(text).__name__}; expected a string, a list of token ids, or "
                "a dict with 'prompt' or 'prompt_token_ids'."
            )
        ids = self._encoded(text, how, add_special_tokens=self.adds_special_tokens)
        return {"prompt": text, "prompt_token_ids": self._checked_ids(ids, how)}

    def _encoded(self, text: str, how: Tokenization, *, add_special_tokens: bool) -> list[int]:
        tokenizer = self.required_tokenizer()
        # A longer text cannot fit: it is refused or cut before the time is spent to tokenize it.
        most_chars = LONGEST_TOKEN * self.limits.max_model_len
        limit = how.longest(self.limits.max_model_len, self.limits.answer_room)
        if limit is not None:
            text = how.cut(text, most_chars, self._usual_side)
        if how.add_special_tokens is not None:
            add_special_tokens = how.add_special_tokens
        return tokenizer.encode(
            text.lower() if how.do_lower_case or self.limits.lower_case else text,
            add_special_tokens,
            max_chars=most_chars,
            # If the caller chose a side, _checked_ids truncates.
            max_tokens=limit if how.truncation_side is None else None,
            side=self._usual_side,
        )

    @property
    def _usual_side(self) -> Side:
        """Default truncation side: left for generation, which keeps the prompt's end; else the
        tokenizer's."""
        if self.limits.answer_room:
            return "left"
        return self.tokenizer.truncation_side if self.tokenizer else "right"

    def _checked_ids(self, given: Any, how: Tokenization) -> list[int]:
        ids = plain_ints(given)
        limit = how.longest(self.limits.max_model_len, self.limits.answer_room)
        if limit is not None:
            ids = how.cut(ids, limit, self._usual_side)
        if not ids:
            raise RequestError("the prompt is empty; at least one token is needed.")
        if len(ids) > self.limits.max_model_len - self.limits.answer_room:
            raise ContextOverflow(self.limits.max_model_len, f"contains {len(ids)} input tokens")
        return self.limits.in_vocabulary("prompt_token_ids", ids)


def plain_ints(given: Any) -> list[int]:
    """Token ids from a list, tuple or one-dimensional integer array. Raises RequestError."""
    if hasattr(given, "tolist") and not isinstance(given, Sequence):
        if len(given.shape) != 1:
            raise RequestError(f"token ids have shape {given.shape}; expected one dimension.")
        given = given.tolist()
    if isinstance(given, (list, tuple)) and all(type(item) is int for item in given):
        return list(given)
    return token_ids("prompt_token_ids", given)
