"""Prompts as users write them, rendered to checked token ids.

In: a text, token ids, a dict with one of them, or a rendered conversation. Out: a TokensPrompt.
Must not know sampling parameters or requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jengine.engine.limits import Limits
from jengine.errors import ContextOverflow, RequestError, UnsupportedFeature, nearest_name
from jengine.prompts import TokensPrompt
from jengine.sampling_checks import token_ids
from jengine.text.tokenization import AS_USUAL, Tokenization
from jengine.text.tokenizer import Tokenizer

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
LATER_PROMPT_KEYS = {
    "prompt_embeds": "input of embeddings",
    "multi_modal_data": "multimodal input",
    "multi_modal_uuids": "multimodal input",
    "mm_processor_kwargs": "multimodal input",
    "encoder_prompt": "input of an encoder",
    "decoder_prompt": "input of an encoder",
}
LONGEST_SALT = 1024
# Characters that a token stands for at most, on average over a prompt.
LONGEST_TOKEN = 64


class PromptRenderer:
    """Tokenizes prompts and checks their ids against the model's limits."""

    def __init__(self, limits: Limits, tokenizer: Tokenizer | None) -> None:
        self.limits = limits
        self.tokenizer = tokenizer

    def render(self, given: Any, how: Tokenization = AS_USUAL) -> TokensPrompt:
        """A string, a sequence of ids, or a dict with one of them, as checked token ids."""
        if isinstance(given, Mapping):
            return self._from_dict(given, how)
        if isinstance(given, str):
            return self._from_text(given, how)
        return {"prompt_token_ids": self._checked_ids(given, how)}

    def render_chat(self, text: str, how: Tokenization = AS_USUAL) -> TokensPrompt:
        """A conversation as its template wrote it, which already contains the special tokens."""
        ids = self._encoded(text, how, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": self._checked_ids(ids, how)}

    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer, or a RequestError where the engine has none."""
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
        salt = given.get("cache_salt")
        if salt is not None and (not isinstance(salt, str) or not 0 < len(salt) <= LONGEST_SALT):
            raise RequestError(f"cache_salt: expected a string of 1 to {LONGEST_SALT} characters.")
        text, ids = given.get("prompt"), given.get("prompt_token_ids")
        if ids is None:
            prompt = self._from_text(text, how)
        elif text is None:
            prompt = TokensPrompt(prompt_token_ids=self._checked_ids(ids, how))
        elif isinstance(text, str):
            prompt = TokensPrompt(prompt_token_ids=self._checked_ids(ids, how), prompt=text)
        else:
            raise RequestError(f"prompt is a {type(text).__name__}; expected a string.")
        if salt is not None:
            prompt["cache_salt"] = salt
        return prompt

    def _from_text(self, text: Any, how: Tokenization) -> TokensPrompt:
        if not isinstance(text, str):
            raise RequestError(
                f"a prompt is a {type(text).__name__}; expected a string, a list of token ids, or "
                "a dict with 'prompt' or 'prompt_token_ids'."
            )
        ids = self._encoded(text, how, add_special_tokens=True)
        return {"prompt": text, "prompt_token_ids": self._checked_ids(ids, how)}

    def _encoded(self, text: str, how: Tokenization, *, add_special_tokens: bool) -> list[int]:
        tokenizer = self.required_tokenizer()
        # A text of more than this many characters per token of context does not fit. It is refused
        # or cut before it is tokenized, since tokenizing it would take long for nothing.
        most_chars = LONGEST_TOKEN * self.limits.max_model_len
        limit = how.longest(self.limits.max_model_len)
        if limit is not None:
            text = how.cut(text, most_chars, tokenizer.truncation_side)
        if how.add_special_tokens is not None:
            add_special_tokens = how.add_special_tokens
        return tokenizer.encode(
            text.lower() if how.do_lower_case else text,
            add_special_tokens,
            max_chars=most_chars,
            # With a side of the caller's own, _checked_ids cuts.
            max_tokens=limit if how.truncation_side is None else None,
        )

    def _checked_ids(self, given: Any, how: Tokenization) -> list[int]:
        ids = plain_ints(given)
        limit = how.longest(self.limits.max_model_len)
        if limit is not None:
            ids = how.cut(ids, limit, self.tokenizer.truncation_side if self.tokenizer else "right")
        if not ids:
            raise RequestError("the prompt is empty; at least one token is needed.")
        if len(ids) >= self.limits.max_model_len:
            raise ContextOverflow(self.limits.max_model_len, f"contains {len(ids)} input tokens")
        return self.limits.in_vocabulary("prompt_token_ids", ids)


def plain_ints(given: Any) -> list[int]:
    """Token ids from a list, a tuple or a one-dimensional integer array."""
    if hasattr(given, "tolist") and not isinstance(given, Sequence):
        if len(given.shape) != 1:
            raise RequestError(f"token ids have shape {given.shape}; expected one dimension.")
        given = given.tolist()
    if isinstance(given, (list, tuple)) and all(type(item) is int for item in given):
        return list(given)
    return token_ids("prompt_token_ids", given)
