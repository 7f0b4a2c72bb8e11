"""Runs beam searches over an engine: for all prompts in lockstep, or for one asyncio request.

In: prompts and BeamSearchParams. Out: BeamSearchOutputs, or RequestOutputs for servers. No jax.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple

from jengine.adapters import LoRARequest
from jengine.api.answering import Answering, Progress, bar
from jengine.api.arguments import Loras, as_list, spread
from jengine.beam_search import BeamSearchOutput, BeamSearchParams
from jengine.engine.beam_guide import BeamGuide
from jengine.engine.beams import BeamSearch
from jengine.engine.session import Session
from jengine.errors import RequestError
from jengine.outputs import CompletionOutput, RequestOutput
from jengine.prompts import TokensPrompt
from jengine.sampling_checks import integer
from jengine.sampling_params import SamplingParams

Stream = AsyncGenerator[RequestOutput, None]
Open = Callable[[TokensPrompt, SamplingParams], Stream]


def opened_search(session: Session, prompt: Any, params: Any) -> BeamSearch:
    """Validate a prompt's parameters and start its search."""
    if not isinstance(params, BeamSearchParams):
        raise RequestError(
            f"beam_search: params is a {type(params).__name__}; expected "
            "BeamSearchParams(beam_width=..., max_tokens=...)."
        )
    intake = session.input_processor
    guide = None
    if params.structured_outputs is not None:
        spec = intake.grammar(params.structured_outputs)
        guide = BeamGuide(intake.grammars, spec, intake.limits.vocab_size)
    rendered = intake.prompts.render(prompt)
    return BeamSearch(rendered, params, intake.limits, intake.tokenizer, guide)


def beam_search(
    session: Session,
    answering: Answering,
    prompts: Any,
    params: Any,
    use_tqdm: Progress,
    concurrency_limit: int | None,
    lora_request: Loras = None,
) -> list[BeamSearchOutput]:
    """The best sequences of each prompt. Beams of all prompts run in the same batches."""
    given = as_list(prompts)
    searches = [
        Adapted(opened_search(session, prompt, params), adapter)
        for prompt, adapter in zip(
            given, spread("lora_request", lora_request, len(given)), strict=True
        )
    ]
    if concurrency_limit is not None:
        concurrency_limit = integer("concurrency_limit", concurrency_limit, 1)
    size = concurrency_limit or max(len(searches), 1)
    for begin in range(0, len(searches), size):
        together = searches[begin : begin + size]
        with bar(use_tqdm, params.max_tokens, "Beam search") as progress:
            while _advance(answering, together):
                progress.update(1)
    return [one.search.output() for one in searches]


class Adapted(NamedTuple):
    """A search with the LoRA adapter of its prompt."""

    search: BeamSearch
    adapter: LoRARequest | None


def _advance(answering: Answering, searches: Sequence[Adapted]) -> bool:
    """Continue every beam of these searches by one token; False if none is left."""
    asked = [one.search.asked() for one in searches]
    requests = [
        (*beam, one.adapter)
        for one, of_search in zip(searches, asked, strict=True)
        for beam in of_search
    ]
    if not requests:
        return False
    prompts, params, adapters = map(list, zip(*requests, strict=True))
    outputs = iter(answering.answer(prompts, params, False, lora_request=adapters))
    for one, of_search in zip(searches, asked, strict=True):
        if of_search:
            one.search.take([next(outputs) for _ in of_search])
    return True


async def streamed_search(search: BeamSearch, open_stream: Open, request_id: str) -> Stream:
    """Yield one output, when the search has ended: each of the best sequences is a completion."""
    while asked := search.asked():
        search.take(await _all_last([open_stream(*one) for one in asked]))
    yield answer_of(search, request_id)


async def _all_last(streams: Sequence[Stream]) -> list[RequestOutput]:
    """The last output of each stream. An error in one, or cancellation, aborts all."""
    tasks = [asyncio.ensure_future(_last(stream)) for stream in streams]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in streams:
            await stream.aclose()


async def _last(stream: Stream) -> RequestOutput:
    async for output in stream:
        if output.finished:
            return output
    raise AssertionError("a stream ends with a finished output")


def answer_of(search: BeamSearch, request_id: str) -> RequestOutput:
    """The best sequences as completions of one request, without the prompt and without the EOS."""
    prompt, failure = search.prompt, search.failure
    begin, completions = len(prompt["prompt_token_ids"]), []
    for index, sequence in enumerate(search.output().sequences):
        tokens, reason, stop = sequence.tokens[begin:], sequence.finish_reason or "length", None
        shown = tokens
        if search.has_ended(sequence):
            reason, stop, shown = "stop", tokens[-1], tokens[:-1]
            tokens = tokens if search.params.include_stop_str_in_output else shown
        completions.append(
            CompletionOutput(
                index=index,
                text=search.text(shown) or "",
                token_ids=tokens,
                cumulative_logprob=sequence.cum_logprob,
                logprobs=sequence.logprobs[: len(tokens)],
                finish_reason=reason,
                stop_reason=stop,
            )
        )
    output = RequestOutput(
        request_id=request_id,
        prompt=prompt.get("prompt"),
        prompt_token_ids=prompt["prompt_token_ids"],
        prompt_logprobs=None,
        outputs=completions,
        finished=True,
    )
    if failure is not None:
        output.error, output.refused = failure.error, failure.refused
        output.engine_lost, output.weight_version = failure.engine_lost, failure.weight_version
    return output
