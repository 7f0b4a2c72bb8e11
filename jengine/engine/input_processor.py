"""Prompts in: from what a user gives to checked WireRequests, one a completion.

Everything that can be wrong with a request is found here, before anything of it is queued.
Must not know the scheduler or how answers are built.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jengine.errors import RequestError, UnsupportedFeature, nearest_name
from jengine.plan import RowSampling
from jengine.request import WireRequest
from jengine.sampling_params import SamplingParams, integer, token_ids
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
MAX_BAD_WORD_TOKENS = 1024
# Beyond these a float32 product with a logit could leave the finite numbers.
REPETITION_LIMITS = (1e-30, 1e30)
SMALLEST_TOP_P = 1e-30


@dataclass(frozen=True)
class Limits:
    """What the model and the engine can take."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int  # -1: the whole vocabulary
    eos_token_ids: tuple[int, ...]  # ends an answer without a stop reason
    stop_token_ids: tuple[int, ...] = ()  # the model's other ending ids, which are stop reasons

    @property
    def most_logprobs(self) -> int:
        """The largest k a request may ask for."""
        return self.vocab_size if self.max_logprobs < 0 else min(self.max_logprobs, self.vocab_size)


@dataclass(frozen=True)
class Prompt:
    """A prompt as text, if there was one, and as checked token ids."""

    text: str | None
    token_ids: list[int]
    cache_salt: str | None = None
    taps: int = 0


@dataclass(frozen=True)
class Submission:
    """One prompt with its parameters, ready to be queued: one wire request for each answer."""

    prompt: Prompt
    params: SamplingParams
    wires: tuple[WireRequest, ...]


class InputProcessor:
    """Tokenizes, checks, fans out."""

    def __init__(self, limits: Limits, tokenizer: Tokenizer | None, seed: int) -> None:
        self.limits = limits
        self.tokenizer = tokenizer
        # Requests without a seed draw one here, so an engine's seed fixes a whole run.
        self._seeds = random.Random(seed)  # noqa: S311 - not for secrets
        self._numbers = itertools.count()

    def render(self, given: Any, how: Tokenization = AS_USUAL) -> Prompt:
        """A str, a sequence of ids, or a dict with one of them, as a checked prompt."""
        if isinstance(given, Mapping):
            return self._from_dict(given, how)
        if isinstance(given, str):
            return self._from_text(given, None, how)
        return Prompt(None, self._checked_ids(given, how))

    def render_chat(self, text: str, how: Tokenization = AS_USUAL) -> Prompt:
        """A rendered conversation, which already contains its special tokens."""
        ids = self._encoded(text, how, add_special_tokens=False)
        return Prompt(text, self._checked_ids(ids, how))

    def submission(self, prompt: Prompt, params: SamplingParams, priority: int = 0) -> Submission:
        """Check the parameters against the model and build one wire request an answer.

        Each gets an id that is never used again, so that tokens still on their way to a request
        that was discarded cannot reach a later one.
        """
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params is a {type(params).__name__}; expected SamplingParams."
            )
        params = params.clone()  # checked again: fields may have been set since, or may be later
        if params.stop and self.tokenizer is None:
            raise RequestError(
                "stop strings need a tokenizer (skip_tokenizer_init=True was given); use "
                "stop_token_ids instead."
            )
        priority = integer("priority", priority, -(2**31), 2**31 - 1)
        seed = self._seeds.getrandbits(62) if params.seed is None else params.seed
        arrival = time.monotonic()
        sampling = self._sampling(params)
        stop_ids = self._stop_ids(params)
        wires = tuple(
            WireRequest(
                request_id=str(next(self._numbers)),
                prompt_token_ids=prompt.token_ids,
                sampling=msgspec.structs.replace(sampling, seed=(seed + index) % 2**64),
                max_tokens=self._at_most_the_context(params.max_tokens),
                stop_token_ids=stop_ids,
                eos_token_ids=self._eos(params),
                priority=priority,
                arrival=arrival,
                drawn_seed=params.seed is None,
                cache_salt=prompt.cache_salt,
                # Every token of a tapped request runs: a cached one would not pass the taps.
                skip_reading_prefix_cache=bool(params.skip_reading_prefix_cache or prompt.taps),
                taps=prompt.taps,
            )
            for index in range(params.n)
        )
        return Submission(prompt, params, wires)

    def _from_dict(self, given: Mapping[str, Any], how: Tokenization) -> Prompt:
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
        if given.get("prompt_token_ids") is not None:
            text = given.get("prompt")
            if text is not None and not isinstance(text, str):
                raise RequestError(f"prompt is a {type(text).__name__}; expected a string.")
            return Prompt(text, self._checked_ids(given["prompt_token_ids"], how), salt)
        return self._from_text(given.get("prompt"), salt, how)

    def _from_text(self, text: Any, salt: str | None, how: Tokenization) -> Prompt:
        if not isinstance(text, str):
            raise RequestError(
                f"a prompt is a {type(text).__name__}; expected a string, a list of token ids, or "
                "a dict with 'prompt' or 'prompt_token_ids'."
            )
        ids = self._encoded(text, how, add_special_tokens=True)
        return Prompt(text, self._checked_ids(ids, how), salt)

    def _encoded(self, text: str, how: Tokenization, *, add_special_tokens: bool) -> list[int]:
        tokenizer = self._tokenizer()
        # A text of more than this many characters per token of context does not fit. It is refused
        # or cut here, so that what is thrown away anyway is not tokenized first.
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

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise RequestError(
                "this engine has no tokenizer (skip_tokenizer_init=True); give token ids instead."
            )
        return self.tokenizer

    def _checked_ids(self, given: Any, how: Tokenization) -> list[int]:
        ids = plain_ints(given)
        limit = how.longest(self.limits.max_model_len)
        if limit is not None:
            ids = how.cut(ids, limit, self.tokenizer.truncation_side if self.tokenizer else "right")
        if not ids:
            raise RequestError("the prompt is empty; at least one token is needed.")
        if len(ids) >= self.limits.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but this model's maximum context length is "
                f"{self.limits.max_model_len} tokens, the answer included. Shorten the prompt, or "
                "raise max_model_len if the model allows it."
            )
        return self._in_vocabulary("prompt_token_ids", ids)

    def _in_vocabulary(self, name: str, ids: Iterable[int]) -> list[int]:
        ids = list(ids)
        if ids and not (min(ids) >= 0 and max(ids) < self.limits.vocab_size):
            bad = next(i for i in ids if not 0 <= i < self.limits.vocab_size)
            raise RequestError(
                f"{name} has {bad}; token ids of this model go from 0 to "
                f"{self.limits.vocab_size - 1}."
            )
        return ids

    def _at_most_the_context(self, tokens: int | None) -> int:
        """A number of tokens, bounded by what can exist: 64-bit numbers do not fit the device."""
        longest = self.limits.max_model_len
        return longest if tokens is None else min(tokens, longest)

    def _eos(self, params: SamplingParams) -> list[int]:
        return [] if params.ignore_eos else list(self.limits.eos_token_ids)

    def _stop_ids(self, params: SamplingParams) -> list[int]:
        own = self._in_vocabulary("stop_token_ids", params.stop_token_ids or [])
        return own if params.ignore_eos else [*own, *self.limits.stop_token_ids]

    def _sampling(self, params: SamplingParams) -> RowSampling:
        allowed = params.allowed_token_ids
        least, most = REPETITION_LIMITS
        return RowSampling(
            temperature=params.temperature,
            top_k=min(params.top_k, self.limits.vocab_size),
            top_p=max(params.top_p, SMALLEST_TOP_P),
            min_p=params.min_p,
            repetition_penalty=min(max(params.repetition_penalty, least), most),
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            min_tokens=self._at_most_the_context(params.min_tokens),
            stop_ids=sorted({*self._eos(params), *self._stop_ids(params)}),
            logit_bias=self._bias(params),
            allowed_ids=None
            if allowed is None
            else self._in_vocabulary("allowed_token_ids", allowed),
            bad_words=self._bad_words(params),
            logprobs=self._logprob_count("logprobs", params.logprobs),
            prompt_logprobs=self._logprob_count("prompt_logprobs", params.prompt_logprobs),
        )

    def _bias(self, params: SamplingParams) -> dict[int, float]:
        bias = {int(key): value for key, value in (params.logit_bias or {}).items()}
        self._in_vocabulary("logit_bias", bias)
        return bias

    def _logprob_count(self, name: str, count: int | None) -> int | None:
        most = self.limits.most_logprobs
        if count is not None and (self.limits.vocab_size if count < 0 else count) > most:
            raise RequestError(
                f"{name}={count} asks for more than max_logprobs={most}. Lower it, or create the "
                "engine with a larger max_logprobs (-1: the whole vocabulary)."
            )
        return count

    def _bad_words(self, params: SamplingParams) -> list[list[int]]:
        """Each word as it is tokenized at the start of a text and after a space."""
        if not params.bad_words:
            return []
        tokenizer = self._tokenizer()
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            for text in (word, " " + word.lstrip()):
                ids = tuple(tokenizer.encode(text, add_special_tokens=False))
                if ids:
                    found[ids] = None
        if sum(map(len, found)) > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"bad_words make {sum(map(len, found))} tokens; the most is {MAX_BAD_WORD_TOKENS}."
            )
        return [list(ids) for ids in found]


def plain_ints(given: Any) -> list[int]:
    """Token ids from a list, a tuple or a one-dimensional integer array."""
    if hasattr(given, "tolist") and not isinstance(given, Sequence):
        if len(given.shape) != 1:
            raise RequestError(f"token ids have shape {given.shape}; expected one dimension.")
        given = given.tolist()
    if isinstance(given, (list, tuple)) and all(type(item) is int for item in given):
        return list(given)
    return token_ids("prompt_token_ids", given)
