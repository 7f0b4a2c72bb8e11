"""How one request wants its answers written: role, parsers, log-probabilities, token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.server.chat.answers import Answer
from jengine.server.chat.fields import ChatRequest
from jengine.server.chat.types import ChatChoice
from jengine.server.formats.arrays import npy_base64
from jengine.server.formats.logprobs import ChatLogprobs, LogprobFormat
from jengine.server.formats.usage import created_cache_tokens
from jengine.server.serving.service import Service
from jengine.text.chat_parser import ChatParser, ForcedCalls
from jengine.text.reasoning_tokens import ReasoningTokens, reasoning_tokens


class ChatTexts:
    """The same choices for a whole answer and for a stream."""

    def __init__(self, request: ChatRequest, service: Service) -> None:
        settings = service.settings
        self.request = request
        self._service = service
        self.prompt = ""  # as the template wrote it, once it has
        self.reasoning_parser = settings.reasoning_parser
        # Forced calls are plain JSON, whatever the model's own format is.
        own_format = request.offers_tools and not request.forces_calls
        self.tool_parser = settings.tool_call_parser if own_format else None
        self._reasoning_fields = settings.reasoning_fields
        self._shows_reasoning = request.include_reasoning is not False
        as_ids = request.return_tokens_as_token_ids
        if as_ids is None:
            as_ids = settings.return_tokens_as_token_ids
        self._format = LogprobFormat(service.live.engine.tokenizer, as_ids=as_ids)
        last = (request.messages or [{}])[-1]
        self.role = settings.response_role if request.opens_answer else str(last.get("role"))
        # The part of the last message that the answer continues, if it is to be repeated.
        content = last.get("content") if request.echo and last.get("role") == self.role else ""
        self.echoed = content if isinstance(content, str) else ""

    @property
    def shows_tokens(self) -> bool:
        """Whether single tokens may be shown: not where they would show hidden reasoning."""
        return self._shows_reasoning or self.reasoning_parser is None

    @property
    def forced(self) -> ForcedCalls | None:
        """How an answer writes calls that a grammar forces."""
        return ForcedCalls(self.request.forced_name) if self.request.forces_calls else None

    def created_cache_tokens(self, output: RequestOutput) -> int:
        """The tokens of the prompt that the request has added to the prefix cache."""
        return created_cache_tokens(output, self._service.live.engine.cache)

    def answer(self) -> Answer:
        """A parser for one of the n answers."""
        parser = ChatParser(
            self.reasoning_parser,
            self.tool_parser,
            self.request.tools,
            prompt=self.prompt,
            response_template=self._service.live.rendering.tokenizer.response_template,
            parallel_tool_calls=self.request.parallel_tool_calls is not False,
            forced=self.forced,
        )
        return Answer(
            parser,
            reasoning_fields=self._reasoning_fields,
            shows_reasoning=self._shows_reasoning,
            names_function=self.request.forced_name is not None,
            forces_calls=self.request.forces_calls,
            counter=self._counter(),
        )

    def _counter(self) -> ReasoningTokens | None:
        if self.reasoning_parser is None:
            return None
        tokenizer = self._service.live.rendering.tokenizer
        return reasoning_tokens(tokenizer, self.reasoning_parser, self.prompt)

    def reasoning_tokens(self, answers: Iterable[Answer]) -> int | None:
        """How many tokens the reasoning of all answers is; None if it is not split off.

        Where no ids mark it, its text is tokenized again, so that streams and whole answers count
        alike.
        """
        if self.reasoning_parser is None:
            return None
        tokenizer = self._service.live.rendering.tokenizer
        return sum(
            len(tokenizer.encode("".join(one.thoughts), False))
            if one.counter is None
            else one.counter.count
            for one in answers
        )

    async def counted(self, answers: Sequence[Answer]) -> int | None:
        """The same in a stream: what takes long is done in a thread."""
        if all(one.counter is not None or not one.thoughts for one in answers):
            return self.reasoning_tokens(answers)
        return await asyncio.to_thread(self.reasoning_tokens, answers)

    def choice(self, one: CompletionOutput, answer: Answer) -> ChatChoice:
        """A whole answer, with a parser of its own."""
        message = answer.message(one, self.role, self.echoed)
        return ChatChoice(
            index=one.index,
            message=message,
            logprobs=self.logprobs(one),
            finish_reason=answer.finish_reason(one.finish_reason),
            stop_reason=one.stop_reason,
            token_ids=self.token_ids(one),
            routed_experts=npy_base64(one.routed_experts),
        )

    def logprobs(self, one: CompletionOutput) -> ChatLogprobs | None:
        """The log-probabilities of what is new."""
        if not (self.request.logprobs and self.shows_tokens):
            return None
        count = None if self.request.logprob_token_ids else self.request.top_logprobs or 0
        return self._format.chat(one.token_ids, one.logprobs or [], count)  # type: ignore[arg-type]

    def token_ids(self, one: CompletionOutput) -> list[int] | None:
        """The tokens of what is new, if they are asked for."""
        return one.token_ids if self.request.return_token_ids and self.shows_tokens else None
