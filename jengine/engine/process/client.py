"""The front's end: an EngineClient whose core runs in another process.

In: the address of a core. Out: what EngineClient promises. Steps run whether or not somebody reads
outputs. Every wait ends when the core dies. Must not know who started the core, or text.
"""

from __future__ import annotations

from typing import TypeVar

import zmq

from jengine.engine.core_state import CoreState
from jengine.engine.own_process import OwnProcess
from jengine.engine.process.asking import Asking
from jengine.engine.process.beginning import START_SECONDS, Beginning, Tell
from jengine.engine.process.encoding import encode
from jengine.engine.process.hearing import Heard
from jengine.engine.process.life import Life, WhenDead
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.owned_process import Child
from jengine.engine.process.to_core import (
    AbortRequest,
    AddRequest,
    Hello,
    Leave,
    Shutdown,
    TellTokenizer,
)
from jengine.engine.process.to_front import Ready
from jengine.engine.questions import CoreQuestion
from jengine.errors import EngineDead
from jengine.grammar.shared_tokenizer import TokenizerData
from jengine.kvcache.content_journal import HeldContents
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.outputs import TokenDelta
from jengine.request import WireRequest
from jengine.scheduler.refusal import refuse_impossible
from jengine.wire.message import Message
from jengine.wire.socket_loop import SocketLoop

A = TypeVar("A")
# What to do when the engine of a single core has died.
ADVICE = "Create a new engine."


class ProcessClient:
    """The client of a core in another process, which may have several."""

    def __init__(
        self,
        address: str,
        child: Child | None = None,
        mailbox: Mailbox | None = None,
        secret: bytes | None = None,
    ) -> None:
        """With `child`, the core ends with this client and sends it its log.

        A mailbox is shared with the clients of other cores, between which somebody routes requests.
        The core then tells what its cache holds, and that somebody says that a core has died;
        otherwise `outputs` does. A core of another host wants its secret.
        """
        self.address = address
        self.child = child
        self._own = OwnProcess()
        self._mailbox = Mailbox() if mailbox is None else mailbox
        self._asking = Asking(self._send)
        told = [self._asking.fail] if mailbox else [self._asking.fail, self._mailbox.fail]
        self._life = Life(told)
        self._beginning = Beginning(self._life)
        self._cache: CacheCoordinator | None = None
        self._heard = Heard(self._mailbox, self._asking, self._beginning, self.die)
        self._socket = SocketLoop(
            zmq.DEALER, address,
            receive=self._heard.receive, failed=self._broken, lost=self._disconnected,
            secret=secret,
        )  # fmt: skip
        self._socket.start()
        self._send(Hello(takes_logs=child is not None, takes_contents=mailbox is not None))

    # --- start -----------------------------------------------------------------------------------

    def wait_until_ready(self, tell: Tell | None = None, seconds: float = START_SECONDS) -> Ready:
        """What the core says of its engine, once that is built. Its progress until then is told.

        Raises the error that the core met, or EngineDead if it died or fell silent.
        """
        ready = self._beginning.wait(tell, seconds)
        self._cache = self._cache or CacheCoordinator(ready.cache)
        return ready

    def tell_tokenizer(self, tokenizer: TokenizerData) -> None:
        """What grammars are over. Before the first request that has one, also while it starts."""
        self._send(TellTokenizer(tokenizer))

    @property
    def contents(self) -> HeldContents:
        """What the core's cache holds, if it tells."""
        return self._heard.contents

    @property
    def dropped(self) -> int:
        """How many frames could not be read."""
        return self._heard.dropped

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether `outputs` has something to wait for."""
        return self._mailbox.has_work

    def check(self, wire: WireRequest) -> None:
        """Raise a RequestError if no schedule could ever answer this request."""
        ready = self._beginning.ready
        assert ready is not None and self._cache is not None, "the core is not ready"
        refuse_impossible(wire, ready.schedule, self._cache)

    def add(self, wire: WireRequest) -> None:
        """Queue a request, or raise a RequestError if no schedule could ever answer it."""
        self.check_alive()
        self.check(wire)
        self._mailbox.expect(wire.request_id)
        self._send(AddRequest(wire))

    def abort(self, request_id: str) -> None:
        """Queue the end of a request. Takes no lock: a finalizer may call it at any moment."""
        self._send(AbortRequest(request_id))

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Wait for new tokens and return them; nothing if no request is open or steps are paused.

        Raises EngineDead if the core has died, and what a step raised that never ran.
        """
        self._own.check()
        return self._mailbox.take(wait)

    # --- questions -------------------------------------------------------------------------------

    def ask(self, question: CoreQuestion[A]) -> A:
        """The core's answer."""
        self._own.check()
        answer = self._asking.ask(question)
        if question.runs_steps is not None:
            self._mailbox.pause(not question.runs_steps)
        return answer

    def state(self) -> CoreState:
        """What the core said last and how long ago that was. Never waits."""
        return self._heard.state

    @property
    def is_compiling(self) -> bool:
        """Whether a step waits for a program that is being compiled, as the core said last."""
        return self._heard.state.compiling

    @property
    def weights_version(self) -> int:
        """How often the parameters were replaced, as the core said last."""
        return self._heard.state.counts.weights_version

    # --- life and death --------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Whether the core has not died, as far as known."""
        return self._life.failure is None

    def check_process(self) -> None:
        """Raise EngineDead in a fork of the process that made this client."""
        self._own.check()

    def check_alive(self) -> None:
        """Raise EngineDead if the core has stopped or belongs to another process."""
        self._own.check()
        self._life.check()

    def when_dead(self, tell: WhenDead) -> None:
        """Have a function called, from a thread of this client's, when the core has died."""
        self._life.when_dead(tell)

    def die(self, reason: EngineDead) -> None:
        """The core is gone: fail everything that waits for it. The first reason counts."""
        self._life.end(reason)

    def dump_stacks(self) -> None:
        """Have the core write the stacks of its threads to stderr, if it is this process's own."""
        if self.child is not None:
            self.child.dump_stacks()

    def exited(self, how: str, seconds: float) -> None:
        """The core's process has ended. Its own last message says more, if it arrives in time."""
        self._beginning.wait_for_end(seconds)
        self.die(EngineDead(f"{how}. {ADVICE}"))

    def shutdown(self) -> None:
        """End the core if it is this process's own, else leave it to its other fronts.

        Twice is harmless; in a forked child it does nothing.
        """
        if self._own.is_here:
            self._send(Leave() if self.child is None else Shutdown())
            self.die(EngineDead("the engine was shut down."))
            self._socket.close()
            if self.child is not None and self._beginning.ready is not None:
                self.child.end()
            elif self.child is not None:
                self.child.kill()  # it may be busy for minutes, and has nothing to lose yet

    def _disconnected(self) -> None:
        if self.child is None:  # else its end is reported, with the reason
            self.die(EngineDead("the engine core has closed the connection. Connect to a new one."))

    def _broken(self, error: BaseException) -> None:
        problem = f"the connection to the engine core has failed: {type(error).__name__}: {error}"
        self.die(EngineDead(f"{problem}. {ADVICE}"))

    def _send(self, message: Message) -> None:
        self._socket.send([encode(message)])
