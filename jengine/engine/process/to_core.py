"""The messages that fronts send to an engine core. Must not know sockets."""

from __future__ import annotations

from jengine.engine.process.message import Message
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.request import WireRequest


class Hello(Message, frozen=True):
    """The first message of a front."""

    takes_logs: bool = False  # the core's log records go to this front
    takes_contents: bool = False  # so do the contents of its cache, by which requests are routed


class TellTokenizer(Message, frozen=True):
    """The front's tokenizer, which grammars are over."""

    tokenizer: TokenizerData


class AddRequest(Message, frozen=True):
    """Queue a request."""

    wire: WireRequest


class AbortRequest(Message, frozen=True):
    """End a request."""

    request_id: str


class Settle(Message, frozen=True):
    """Answer when everything sent before has reached the scheduler."""


class AskStats(Message, frozen=True):
    """The counts between two steps."""


class CallWorkers(Message, frozen=True):
    """One of `executor.calls.CALLS` in every process that runs steps."""

    method: str
    arguments: bytes


class ResetPrefixCache(Message, frozen=True):
    """Forget cached prefixes."""

    reset_running_requests: bool


class AskHealth(Message, frozen=True):
    """The health of every process that runs steps."""


class Probe(Message, frozen=True):
    """Run a step with nothing in it."""


class Pause(Message, frozen=True):
    """Run no more steps; answered when the last one has ended."""


class Resume(Message, frozen=True):
    """Run steps again."""


class Sleep(Message, frozen=True):
    """Free memory and run no steps; parameters stay on the host (1) or are dropped (2)."""

    level: int
    tags: list[str]


class WakeUp(Message, frozen=True):
    """Bring memory back; answered with whether nothing sleeps any more."""

    tags: list[str]


class ReloadWeights(Message, frozen=True):
    """Read the parameters from the model's folder again."""


Question = (
    Sleep
    | WakeUp
    | ReloadWeights
    | Settle
    | AskStats
    | CallWorkers
    | ResetPrefixCache
    | AskHealth
    | Probe
    | Pause
    | Resume
)


class Ask(Message, frozen=True):
    """A question, which gets an Answer or a Refusal with the same number."""

    number: int
    question: Question


class Leave(Message, frozen=True):
    """The front leaves: end its requests."""


class Shutdown(Message, frozen=True):
    """The front that started the core ends it."""


FromFront = Hello | TellTokenizer | AddRequest | AbortRequest | Ask | Leave | Shutdown
