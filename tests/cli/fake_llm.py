"""A stand-in for LLM with scripted answers, and a way to run commands with it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.outputs import CompletionOutput, RequestOutput
from jengine.sampling_params import RequestOutputKind, SamplingParams

# Pieces of text, or an exception to raise in their midst.
Script = Sequence[str | BaseException]


class Stats:
    """Numbers of an engine that runs nothing."""

    programs = 2

    def __str__(self) -> str:
        return "all is well"


@dataclass
class FakeLLM:
    """Each answer is a script; the last one is repeated."""

    scripts: list[Script] = field(default_factory=lambda: [["Hello", " there"]])
    finish_reason: str = "stop"
    error: str | None = None
    max_model_len: int = 100
    opened: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[Any, SamplingParams]] = field(default_factory=list)
    closed_streams: int = 0
    shut_down: bool = False

    def open(self, model: str, **settings: Any) -> FakeLLM:
        """The factory that commands get."""
        self.opened.append((model, settings))
        return self

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self) -> None:
        self.shut_down = True

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams(temperature=0.7)

    def stats(self) -> Stats:
        return Stats()

    def wait_until_warm(self) -> bool:
        return True

    def generate(
        self, prompts: list[Any], params: SamplingParams, *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        self.asked.append((prompts, params))
        scripts = [self._next_script() for _ in prompts]
        return [
            self._output(str(i), prompt, ["".join(map(str, script))] * params.n)
            for i, (prompt, script) in enumerate(zip(prompts, scripts, strict=True))
        ]

    def stream(self, prompt: str, params: SamplingParams) -> Iterator[RequestOutput]:
        self.asked.append((prompt, params))
        return self._stream(prompt, params)

    def stream_chat(
        self, messages: list[dict[str, str]], params: SamplingParams
    ) -> Iterator[RequestOutput]:
        self.asked.append((list(messages), params))
        return self._stream(messages[-1]["content"], params)

    def _stream(self, prompt: str, params: SamplingParams) -> Iterator[RequestOutput]:
        assert params.output_kind is RequestOutputKind.DELTA
        script = self._next_script()
        try:
            for i, piece in enumerate(script):
                if isinstance(piece, BaseException):
                    raise piece
                yield self._output("0", prompt, [piece], finished=i + 1 == len(script))
        finally:
            self.closed_streams += 1

    def _next_script(self) -> Script:
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    def _output(
        self, request_id: str, prompt: str, texts: list[str], finished: bool = True
    ) -> RequestOutput:
        reason = self.finish_reason if finished else None
        answers = [
            CompletionOutput(i, text, [7], finish_reason=reason) for i, text in enumerate(texts)
        ]
        ids = list(range(len(prompt)))
        return RequestOutput(request_id, prompt, ids, None, answers, finished, error=self.error)


@dataclass(frozen=True)
class Result:
    """The exit status and output of a command."""

    status: int
    out: str
    err: str


def run(llm: FakeLLM, *words: str, stdin: str = "") -> Result:
    """Run a command line with this model."""
    terminal = Terminal(io.StringIO(stdin), io.StringIO(), io.StringIO())
    try:
        status = main(words, terminal=terminal, open_llm=llm.open)
    except SystemExit as leaving:
        status = int(str(leaving.code))
    return Result(status, terminal.stdout.getvalue(), terminal.stderr.getvalue())  # type: ignore[attr-defined]
