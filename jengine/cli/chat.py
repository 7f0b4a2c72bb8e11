"""`jengine chat`: a conversation with a local model or a server's.

Ctrl-C stops an answer; pressed twice at the prompt, it exits. Lines from a pipe are answered one by
one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jengine.cli.answer import AnswerPiece, TimedAnswer, pieces_of, stream_answer
from jengine.cli.conversation import ChatConversation, read_message
from jengine.cli.few_requests import few_requests, models_sampling
from jengine.cli.flags import (
    add_engine_flags,
    add_sampling_flags,
    engine_arguments,
    sampling_arguments,
)
from jengine.cli.interrupts import given_up_after
from jengine.cli.leaving import engine_to_the_end
from jengine.cli.parser import Parser
from jengine.cli.remote_chat import add_server_flags, open_server, refuse_server_flags
from jengine.cli.terminal import Terminal
from jengine.client.address import is_url
from jengine.client.errors import ServerBusy, ServerFailed
from jengine.errors import CapacityError, RequestError, nearest_name
from jengine.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from jengine import LLM
    from jengine.cli.main import OpenLLM

USAGE = "MODEL|URL [flags]"
EXAMPLES = """\
examples:
  jengine chat demo
  jengine chat ./model --system-prompt "Answer in one sentence." --stats
  jengine chat http://127.0.0.1:8000
  jengine chat ./model -q "What is the capital of France?"
"""
HELP = '''\
/reset         start afresh (the system prompt stays)
/system TEXT   set the system prompt; without text, show it
/stats         how fast the last answer was, and what the engine does
/save FILE     write the conversation as JSON
/help          this list
/exit          leave; so do Ctrl-D and, at the prompt, Ctrl-C twice
A line that ends in \\ goes on in the next; """ opens and closes a block of lines.
Begin with a space to send a line that starts with a slash. Ctrl-C stops an answer.'''
DROPPED = "(stopped before it began; the message is dropped)"
RENDER_SECONDS = 10.0  # time limit of a chat template, as in a server
COMMANDS = ("/reset", "/system", "/stats", "/save", "/help", "/exit")


def add_flags(parser: Parser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a folder, org/name, demo, or a server's URL"
    )
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="answer one message and leave")
    parser.add_argument("--system-prompt", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--stats", action="store_true", help="show the speed of each answer")
    add_sampling_flags(
        parser, leave_out=("n", "logprobs"), max_tokens="most tokens of an answer [the context]"
    )
    add_server_flags(parser)
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    given: dict[str, Any] = {"max_tokens": None, **sampling_arguments(arguments)}
    # Validates settings before the engine starts, which is slow.
    SamplingParams(**given)
    if is_url(arguments.model):
        server = open_server(arguments, given)
        return talk(Chat.begun(server, given, terminal, arguments), arguments.quick)
    refuse_server_flags(arguments)
    settings = engine_arguments(arguments)
    sampling = {**models_sampling(arguments.model, settings), **given}
    settings = few_requests(settings, sampling, most=1)
    if terminal.interactive:
        terminal.note(f"Starting {arguments.model} ...")
    with engine_to_the_end(open_llm, arguments.model, settings) as llm:
        params = llm.get_default_sampling_params().clone(
            n=1, output_kind=RequestOutputKind.DELTA, **given
        )
        model = EngineModel(llm, params)
        return talk(Chat.begun(model, given, terminal, arguments), arguments.quick)


def talk(chat: Chat, quick: str | None) -> int:
    """Answer `quick`, or messages until the input ends."""
    if quick is not None:
        return int(chat.ask(quick).error is not None)
    if chat.terminal.interactive:
        enable_line_editing()
        chat.terminal.note(f"{chat.model.ready} /help lists commands, Ctrl-D leaves.")
    return chat.run()


def enable_line_editing() -> None:
    """Enable arrow keys and history: input() uses readline once it is imported."""
    if importlib.util.find_spec("readline"):
        importlib.import_module("readline")


class ChatModel(Protocol):
    """A model that answers chat messages."""

    @property
    def ready(self) -> str:
        """Sentence announcing the model."""
        ...

    @property
    def max_model_len(self) -> int | None:
        """Context length, if known."""
        ...

    def stream(self, messages: list[dict[str, str]]) -> Generator[AnswerPiece]:
        """Stream an answer; closing the generator aborts it."""
        ...

    def stats(self) -> object:
        """Current load, for display."""
        ...


class EngineModel:
    """A model in this process."""

    ready = "Ready."

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params
        self.max_model_len = llm.max_model_len

    def stream(self, messages: list[dict[str, str]]) -> Generator[AnswerPiece]:
        """Stream an answer. Templating has a time limit, since a chat template is untrusted code
        that may not terminate."""
        with given_up_after(RENDER_SECONDS, "the chat template"):
            answers = self._llm.stream_chat(messages, self._params)
        return pieces_of(answers)

    def stats(self) -> object:
        return self._llm.stats()


@dataclass
class Chat:
    """A conversation with one model."""

    model: ChatModel
    max_tokens: int | None
    terminal: Terminal
    conversation: ChatConversation
    show_stats: bool = False
    last: TimedAnswer | None = None  # None: no message yet, or the last one was dropped
    refused: int = 0
    leaving: bool = False  # whether Ctrl-C was pressed at the last prompt
    _actions: dict[str, Callable[[str], None]] = field(init=False)

    def __post_init__(self) -> None:
        self._actions = {
            "/reset": self._reset,
            "/system": self._system,
            "/stats": self._stats,
            "/save": self._save,
            "/help": lambda _: self.terminal.note(HELP),
        }

    @classmethod
    def begun(
        cls,
        model: ChatModel,
        given: dict[str, Any],
        terminal: Terminal,
        arguments: argparse.Namespace,
    ) -> Chat:
        """A new conversation with only the system prompt."""
        conversation = ChatConversation(arguments.system_prompt)
        return cls(model, given["max_tokens"], terminal, conversation, arguments.stats)

    def run(self) -> int:
        """Answer messages until the input ends. Exit status 1 if input was a pipe and a message was
        refused."""
        while (message := self._next_message()) is not None:
            if message.startswith("/"):
                self._command(message)
            elif message.strip():
                self._try(message)
        return int(bool(self.refused) and not self.terminal.interactive)

    def ask(self, message: str) -> TimedAnswer:
        """Stream the answer to a message and keep both; if it fails, keep neither."""
        self.last = None
        self.conversation.add("user", message)
        try:
            pieces = self.model.stream(self.conversation.messages)
            with self.terminal.answer() as write:
                answer = stream_answer(pieces, write, self.terminal.aside)
            self._keep(answer)
        except BaseException:
            self.conversation.drop_unanswered()
            raise
        self.terminal.say()
        for line in self._remarks(answer):
            self.terminal.note(line)
        return answer

    def _next_message(self) -> str | None:
        """The next message, or None at end of input or after two consecutive Ctrl-C: one may have
        been meant for an answer that just ended."""
        try:
            message = read_message(self.terminal.read_line)
        except EOFError:
            message = None
        except KeyboardInterrupt:
            if self.terminal.interactive and not self.leaving:
                self.leaving = True
                self.terminal.note("\n(Ctrl-C again or Ctrl-D leaves)")
                return ""
            message = None
        self.leaving = False
        if message is None and self.terminal.interactive:
            self.terminal.say()
        return None if message is None or message.strip() == "/exit" else message

    def _try(self, message: str) -> None:
        try:
            self.ask(message.strip())
        except KeyboardInterrupt:
            # An answer that was kept has only its speed line cut short.
            unanswered = self.conversation.drop_unanswered() or self.last is None
            self.terminal.note(f"\n{DROPPED}" if unanswered else "")
        except (RequestError, CapacityError, ServerFailed) as error:
            self.refused += 1
            advice = "Type /reset to start afresh." if self.conversation.turns else "Shorten it."
            advice = "Try again." if isinstance(error, (ServerBusy, ServerFailed)) else advice
            self.terminal.note(f"This message was not answered: {error} {advice}")

    def _keep(self, answer: TimedAnswer) -> None:
        self.last = answer
        if answer.text:
            self.conversation.add("assistant", answer.text)
        else:
            self.conversation.drop_unanswered()

    def _remarks(self, answer: TimedAnswer) -> list[str]:
        length = answer.prompt_tokens + answer.tokens
        most = self.model.max_model_len
        full = answer.finish_reason == "length" and most is not None and length >= most
        remarks = {
            f"(error: {answer.error})": answer.error is not None,
            DROPPED: answer.interrupted and not answer.text,
            "(stopped; what was said stays in the conversation)": (
                answer.interrupted and bool(answer.text)
            ),
            f"(cut off: the context of {most} tokens is full; /reset starts afresh)": full,
            f"(cut off at {self.max_tokens or answer.tokens} tokens; see --max-tokens)": (
                answer.finish_reason == "length" and not full
            ),
            f"({answer.speed})": self.show_stats,
        }
        return [line for line, wanted in remarks.items() if wanted]

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name not in self._actions:
            hint = nearest_name(name, COMMANDS) or " /help lists them."
            self.terminal.note(f"There is no command {name!r}.{hint}")
            return
        self._actions[name](rest.strip())

    def _reset(self, _: str) -> None:
        self.conversation.reset()
        self.terminal.note("The conversation starts afresh.")

    def _system(self, text: str) -> None:
        if text:
            self.conversation.system = text
        self.terminal.note(f"System prompt: {self.conversation.system or '(none)'}")

    def _stats(self, _: str) -> None:
        last = "none" if self.last is None else self.last.speed
        self.terminal.note(f"Last answer: {last}")
        self.terminal.note(f"Engine: {self.model.stats()}")

    def _save(self, name: str) -> None:
        if not name:
            self.terminal.note("Give a file: /save chat.json")
            return
        try:
            self.conversation.save(Path(name).expanduser())
        except (OSError, RuntimeError) as error:
            self.terminal.note(f"Not saved: {error}")
            return
        self.terminal.note(f"Saved {len(self.conversation.messages)} messages in {name}.")
