"""How one request's chat answers are rendered: role, parsers, log-probabilities, token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jengine.outputs import CompletionOutput, RequestOutput
from jengine.server.chat.answers import ChatAnswer
from jengine.server.chat.fields import ChatRequest
from jengine.server.chat.types import ChatChoice
from jengine.server.formats.arrays import npy_base64
from jengine.server.formats.logprobs import ChatLogprobs, LogprobFormat
from jengine.server.formats.usage import created_cache_tokens
from jengine.server.serving.service import Service
from jengine.text.chat_parser import ChatParser, ForcedCalls
from jengine.text.reasoning_tokens import ReasoningTokens, reasoning_tokens


class ChatTexts:
    """How this request's answers are rendered (role, parsers, log-probabilities), shared by the
    JSON and the SSE response."""

    def __init__(self, request: ChatRequest, service: Service) -> None:
        settings = service.settings
        self.request = request
        self._service = service
        self.prompt = ""  # rendered prompt, once known
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
        # Prefix of the answer to echo: the continued last message.
        content = last.get("content") if request.echo and last.get("role") == self.role else ""
        self.echoed = content if isinstance(content, str) else ""

    @property
    def shows_tokens(self) -> bool:
        """Whether per-token fields may be sent: not if they would reveal hidden reasoning."""
        return self._shows_reasoning or self.reasoning_parser is None

    @property
    def forced(self) -> ForcedCalls | None:
        """Syntax in which a grammar-forced answer writes its tool calls."""
        return ForcedCalls(self.request.forced_name) if self.request.forces_calls else None

    def created_cache_tokens(self, output: RequestOutput) -> int:
        """Prompt tokens that this request added to the prefix cache."""
        return created_cache_tokens(output, self._service.live.engine.cache)

    def answer(self) -> ChatAnswer:
        """Return a new parser for one choice."""
        parser = ChatParser(
            self.reasoning_parser,
            self.tool_parser,
            self.request.tools,
            prompt=self.prompt,
            response_template=self._service.live.rendering.tokenizer.response_template,
            parallel_tool_calls=self.request.parallel_tool_calls is not False,
            forced=self.forced,
        )
        return ChatAnswer(
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

    def reasoning_tokens(self, answers: Iterable[ChatAnswer]) -> int | None:
        """Total reasoning tokens of all choices; None without a reasoning parser.

        Without marker ids the reasoning text is tokenized again, so that streams and whole answers
        report the same number.
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

    async def counted(self, answers: Sequence[ChatAnswer]) -> int | None:
        """`reasoning_tokens`, with the tokenizer in a thread: for streams."""
        if all(one.counter is not None or not one.thoughts for one in answers):
            return self.reasoning_tokens(answers)
        return await asyncio.to_thread(self.reasoning_tokens, answers)

    def choice(self, one: CompletionOutput, answer: ChatAnswer) -> ChatChoice:
        """Render a complete choice."""
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
        """Log-probabilities of the new tokens, if requested."""
        if not (self.request.logprobs and self.shows_tokens):
            return None
        count = None if self.request.logprob_token_ids else self.request.top_logprobs or 0
        return self._format.chat(one.token_ids, one.logprobs or [], count)  # type: ignore[arg-type]

    def token_ids(self, one: CompletionOutput) -> list[int] | None:
        """Ids of the new tokens, if requested."""
        return one.token_ids if self.request.return_token_ids and self.shows_tokens else None
