"""Validates prompts and parameters, and builds one WireRequest per completion.

All errors of a request are raised here, before any part of it is queued. Must not know the
scheduler or how outputs are built.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from jengine.config import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS
from jengine.engine.limits import Limits
from jengine.engine.pooling_input import PoolingInput
from jengine.engine.prompt_renderer import PromptRenderer
from jengine.engine.source_renderer import SourceRenderer, SourceRules
from jengine.engine.speech_renderer import SpeechRenderer
from jengine.errors import RequestError
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.tokenizer_check import check_tokenizer
from jengine.media.processor import MediaProcessor
from jengine.media.speech import SpeechProcessor
from jengine.plan import RowSampling
from jengine.pooling_params import PoolingParams
from jengine.prompts import TokensPrompt
from jengine.request import WireRequest
from jengine.sampling_checks import integer
from jengine.sampling_params import ROW_PARAMETERS, SamplingParams
from jengine.structured_outputs import (
    GrammarSpec,
    StructuredOutputsDefaults,
    StructuredOutputsParams,
)
from jengine.text.chat_parser import end_of_reasoning
from jengine.text.tokenizer import Tokenizer
from jengine.thinking_budget import ReasoningMarks, budget_with

MAX_BAD_WORD_CHARACTERS = 8 * MAX_BAD_WORD_TOKENS  # bounds the time of tokenizing them
# Beyond these, float32 logits overflow.
REPETITION_LIMITS = (1e-30, 1e30)
SMALLEST_TOP_P = 1e-30
AnyParams = SamplingParams | PoolingParams


class Processors(Protocol):
    """Registry of an engine's logits processors."""

    def number(self, functions: Sequence[Any]) -> int:
        """Register a request's processors; returns their set's number in plans."""

    def check(self, params: SamplingParams) -> None:
        """Raise RequestError for parameters that a processor refuses."""


class InputProcessor:
    """Checks parameters against the model and splits a request with n completions into n wire
    requests."""

    def __init__(
        self,
        limits: Limits,
        tokenizer: Tokenizer | None,
        seed: int,
        grammars: GrammarCompiler,
        structured: StructuredOutputsDefaults,
        processors: Processors,
        media: MediaProcessor | SpeechProcessor | SourceRules | None = None,
        pooling: PoolingInput | None = None,
        marks: ReasoningMarks | None = None,
    ) -> None:
        self.limits = limits
        self.tokenizer = tokenizer
        self.structured = structured
        self._marks = marks  # None: thinking budgets are refused
        self._processors = processors
        self.pooling = pooling  # None: a generative model
        self.grammars = grammars
        self.prompts = renderer_for(limits, tokenizer, media)
        # Requests without a seed draw one here, so an engine's seed fixes a whole run.
        self._seeds = random.Random(seed)  # noqa: S311 - not for secrets
        self._numbers = itertools.count()

    def own_params(self, params: AnyParams) -> AnyParams:
        """A private, normalised copy of the user's parameters. Raises RequestError."""
        if isinstance(params, PoolingParams):
            return self._pooling_input("PoolingParams").own_params(params)
        self.check_generates()
        return self._own_sampling(params)

    def check_generates(self) -> None:
        """Raise RequestError if the model pools."""
        if self.pooling is not None:
            raise RequestError(
                "LLM.generate() is only supported for generative models. Try passing "
                "`--runner generate` to use the model as a generative model."
            )

    def _pooling_input(self, what: str) -> PoolingInput:
        if self.pooling is None:
            raise RequestError(
                f"{what}: only supported for pooling models. Try passing `--runner pooling` to "
                "use the model as a pooling model."
            )
        return self.pooling

    def _own_sampling(self, params: SamplingParams) -> SamplingParams:
        if not isinstance(params, SamplingParams):
            raise RequestError(
                f"sampling_params is a {type(params).__name__}; expected SamplingParams."
            )
        if params.stop and self.tokenizer is None:
            raise RequestError(
                "stop strings need a tokenizer (skip_tokenizer_init=True was given); use "
                "stop_token_ids instead."
            )
        self._processors.check(params)
        return params.settled()

    def wires(
        self,
        prompt: TokensPrompt,
        params: AnyParams,
        priority: int = 0,
        taps: int = 0,
        adapter: str = "",
    ) -> tuple[WireRequest, ...]:
        """One wire request per completion of a rendered prompt; `adapter` is an adapter's digest.

        Ids are never reused, so late deltas of a discarded request cannot reach a later one.
        """
        priority = integer("priority", priority, -(2**31), 2**31 - 1)
        if isinstance(params, PoolingParams):
            return (self._pooled_wire(prompt, params, priority, adapter),)
        seed = self._seeds.getrandbits(62) if params.seed is None else params.seed
        arrival = time.monotonic()
        if params.prompt_logprobs is not None and "prompt_embeds" in prompt:
            raise RequestError(
                "prompt_logprobs with prompt_embeds: embeddings are no tokens, so they have no "
                "log-probabilities. Leave prompt_logprobs out."
            )
        start, length = params.routed_experts_prompt_start, len(prompt["prompt_token_ids"])
        if start > length:
            raise RequestError(
                f"routed_experts_prompt_start={start} must be between 0 and the prompt length "
                f"({length}), inclusive."
            )
        stop_ids = self.limits.in_vocabulary("stop_token_ids", params.stop_token_ids or [])
        eos_ids: list[int] = []
        if not params.ignore_eos:
            eos_ids = list(self.limits.eos_token_ids)
            stop_ids += self.limits.stop_token_ids
        sampling = self._sampling(params, prompt, {*eos_ids, *stop_ids})
        return tuple(
            WireRequest(
                request_id=str(next(self._numbers)),
                prompt_token_ids=prompt["prompt_token_ids"],
                sampling=msgspec.structs.replace(sampling, seed=(seed + index) % 2**64),
                max_tokens=self.limits.at_most_the_context(params.max_tokens),
                stop_token_ids=stop_ids,
                eos_token_ids=eos_ids,
                repetition=params.repetition,
                priority=priority,
                arrival=arrival,
                drawn_seed=params.seed is None,
                cache_salt=prompt.get("cache_salt"),
                # Cached tokens of a tapped request would not pass the taps.
                skip_reading_prefix_cache=bool(params.skip_reading_prefix_cache or taps),
                taps=taps,
                adapter=adapter,
                kv_transfer=params.kv_transfer_params,
                embeds=prompt.get("prompt_embeds"),
                routed_experts_start=start,
                media=prompt.get("media", []),
                forks=prompt.get("forks", False),
            )
            for index in range(params.n)
        )

    def _pooled_wire(
        self, prompt: TokensPrompt, params: PoolingParams, priority: int, adapter: str
    ) -> WireRequest:
        pooling = self._pooling_input("PoolingParams")
        return WireRequest(
            request_id=str(next(self._numbers)),
            prompt_token_ids=pooling.typed_ids(prompt),
            sampling=pooling.sampling(params),
            max_tokens=1,
            priority=priority,
            arrival=time.monotonic(),
            cache_salt=prompt.get("cache_salt"),
            skip_reading_prefix_cache=pooling.runs_every_token(params),
            adapter=adapter,
        )

    def _sampling(
        self, params: SamplingParams, prompt: TokensPrompt, ending_ids: set[int]
    ) -> RowSampling:
        allowed, ids = params.allowed_token_ids, params.logprob_token_ids or []
        answer, thinking = params.structured_outputs, params.thinking_token_budget
        scored = list(dict.fromkeys(self.limits.in_vocabulary("logprob_token_ids", ids)))
        least, most = REPETITION_LIMITS
        resolved: dict[str, Any] = {
            **{name: getattr(params, name) for name in ROW_PARAMETERS},
            "temperature": 0.0 if params.is_greedy else params.temperature,
            "top_k": min(params.top_k, self.limits.vocab_size),
            "top_p": max(params.top_p, SMALLEST_TOP_P),
            "repetition_penalty": min(max(params.repetition_penalty, least), most),
            "min_tokens": self.limits.at_most_the_context(params.min_tokens),
        }
        return RowSampling(
            **resolved,
            stop_ids=sorted(ending_ids),
            logit_bias=self._bias(params),
            allowed_ids=None
            if allowed is None
            else self.limits.in_vocabulary("allowed_token_ids", allowed),
            bad_words=self._bad_words(params.bad_words) if params.bad_words else [],
            logprobs=len(scored) or self._logprob_count("logprobs", params.logprobs),
            logprob_ids=scored,
            prompt_logprobs=self._logprob_count("prompt_logprobs", params.prompt_logprobs),
            grammar=None if answer is None else self._grammar_after(prompt, answer),
            thinking=None if thinking is None else budget_with(thinking, self._marks),
            processors=self._processors.number(params.logits_processors or []),
            extra_args=params.processor_args,
        )

    def grammar(self, params: StructuredOutputsParams) -> GrammarSpec:
        """Compile and return the requested grammar; up to 5 seconds unless cached. Thread-safe.
        Raises RequestError."""
        check_tokenizer(self.tokenizer)
        spec = self.structured.applied(params).spec()
        self.grammars.compiled(spec)
        return self._beginning_after(spec, params.begins_after)

    def _grammar_after(self, prompt: TokensPrompt, params: StructuredOutputsParams) -> GrammarSpec:
        """The request's grammar; it starts after the reasoning section if the prompt opens one."""
        spec, parser = self.grammar(params), self.structured.reasoning_parser
        if spec.begins_after or parser is None:
            return spec
        text = prompt.get("prompt")
        if text is None:
            tokenizer = self.prompts.required_tokenizer()
            ids = prompt["prompt_token_ids"]
            text = tokenizer.decode(ids, skip_special_tokens=False)
        return self._beginning_after(spec, end_of_reasoning(parser, text))

    def _beginning_after(self, spec: GrammarSpec, text: str | None) -> GrammarSpec:
        if text is None:
            return spec
        tokenizer = self.prompts.required_tokenizer()
        ids = tokenizer.encode(text, add_special_tokens=False)
        return msgspec.structs.replace(spec, begins_after=tuple(ids))

    def _bias(self, params: SamplingParams) -> dict[int, float]:
        bias = {int(key): value for key, value in (params.logit_bias or {}).items()}
        self.limits.in_vocabulary("logit_bias", bias)
        return bias

    def _logprob_count(self, name: str, count: int | None) -> int | None:
        most = self.limits.most_logprobs
        if count is not None and (self.limits.vocab_size if count < 0 else count) > most:
            raise RequestError(
                f"{name}={count} asks for more than max_logprobs={most}. Lower it, or create the "
                "engine with a larger max_logprobs (-1: the whole vocabulary)."
            )
        return count

    def _bad_words(self, words: list[str]) -> list[list[int]]:
        """Token sequences of all bad words, as is and after a space."""
        characters = sum(map(len, words))
        if characters > MAX_BAD_WORD_CHARACTERS:
            raise RequestError(
                f"bad_words: expected at most {MAX_BAD_WORD_CHARACTERS} characters in all; got "
                f"{characters}."
            )
        tokenizer = self.prompts.required_tokenizer()
        found = [ids for word in words for ids in bad_word_ids(tokenizer, word)]
        total = sum(map(len, found))
        if len(found) > MAX_BAD_WORDS or total > MAX_BAD_WORD_TOKENS:
            raise RequestError(
                f"bad_words make {len(found)} words, with and without a space before them, of "
                f"{total} tokens; the most is {MAX_BAD_WORDS} words of {MAX_BAD_WORD_TOKENS} "
                "tokens."
            )
        return found


def bad_word_ids(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """Token sequences that a bad word forbids: the word, and the word after a space if that starts
    with another token and has the same length (as vLLM)."""
    plain, spaced = (
        tokenizer.encode(before + word.lstrip(), add_special_tokens=False) for before in ("", " ")
    )
    if not plain:
        raise RequestError(f"bad_words: {word!r:.80} has no tokens; expected text.")
    differs = bool(spaced) and spaced[0] != plain[0] and len(spaced) == len(plain)
    return [plain, spaced] if differs else [plain]


def renderer_for(
    limits: Limits,
    tokenizer: Tokenizer | None,
    media: MediaProcessor | SpeechProcessor | SourceRules | None,
) -> PromptRenderer:
    """Renderer for a model with this media processor or text encoder; None for neither."""
    if isinstance(media, SourceRules):
        return SourceRenderer(limits, tokenizer, media)
    if isinstance(media, SpeechProcessor):
        return SpeechRenderer(limits, tokenizer, media)
    return PromptRenderer(limits, tokenizer, media)
