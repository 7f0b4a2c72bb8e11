"""EngineClient of a core in another process.

Steps run whether or not outputs are read. Every wait ends if the core dies. Must not know who
started the core, or text.
"""

from __future__ import annotations

from typing import TypeVar

import zmq

from jengine.confined.owned_process import Child
from jengine.engine.core_state import CoreState
from jengine.engine.own_process import OwnProcess
from jengine.engine.process.core_messages import Heard
from jengine.engine.process.liveness import Liveness, WhenDead
from jengine.engine.process.mailbox import Mailbox
from jengine.engine.process.pending_questions import Asking
from jengine.engine.process.startup import START_SECONDS, Startup, Tell
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
from jengine.wire.doors import Door
from jengine.wire.message import Message, encode
from jengine.wire.socket_loop import SocketLoop

A = TypeVar("A")
# What to do when the engine of a single core has died.
ADVICE = "Create a new engine."


class ProcessClient:
    """Client of a core in another process, which may have other clients too."""

    def __init__(
        self,
        address: str,
        child: Child | None = None,
        mailbox: Mailbox | None = None,
        secret: bytes | None = None,
    ) -> None:
        """Connect to a core at `address`.

        With `child`, the core ends with this client and sends it its log. `mailbox` is shared with
        clients of other cores by a router: then the core reports its cache's contents, and the
        router, not `outputs`, raises its death. `secret` authenticates to a core on another host.
        """
        self.address = address
        self.child = child
        self._own = OwnProcess()
        self._mailbox = Mailbox() if mailbox is None else mailbox
        self._asking = Asking(self._send)
        told = [self._asking.fail] if mailbox else [self._asking.fail, self._mailbox.fail]
        self._life = Liveness(told)
        self._beginning = Startup(self._life)
        self._cache: CacheCoordinator | None = None
        self._heard = Heard(self._mailbox, self._asking, self._beginning, self.die)
        self._socket = SocketLoop(
            zmq.DEALER, Door(address, secret),
            receive=self._heard.receive, failed=self._broken, lost=self._disconnected,
        )  # fmt: skip
        self._socket.start()
        self._send(Hello(takes_logs=child is not None, takes_contents=mailbox is not None))

    # --- start -----------------------------------------------------------------------------------

    def wait_until_ready(self, tell: Tell | None = None, seconds: float = START_SECONDS) -> Ready:
        """Wait until the engine is built, reporting progress to `tell`. Raises the core's error, or
        EngineDead if it died or was silent for `seconds`."""
        ready = self._beginning.wait(tell, seconds)
        self._cache = self._cache or CacheCoordinator(ready.cache)
        return ready

    def tell_tokenizer(self, tokenizer: TokenizerData) -> None:
        """Send the tokenizer, needed for grammars; before the first such request, also during
        startup."""
        self._send(TellTokenizer(tokenizer))

    @property
    def contents(self) -> HeldContents:
        """Prefix blocks in the core's cache, if it reports them."""
        return self._heard.contents

    @property
    def dropped(self) -> int:
        """Number of unreadable frames received."""
        return self._heard.dropped

    # --- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self._mailbox.has_work

    def check(self, wire: WireRequest) -> None:
        ready = self._beginning.ready
        assert ready is not None and self._cache is not None, "the core is not ready"
        refuse_impossible(wire, ready.schedule, self._cache)

    def add(self, wire: WireRequest) -> None:
        self.check_alive()
        self.check(wire)
        self._mailbox.expect(wire.request_id)
        self._send(AddRequest(wire))

    def abort(self, request_id: str) -> None:
        self._send(AbortRequest(request_id))

    def outputs(self, wait: bool = True) -> list[TokenDelta]:
        """Wait for new deltas and return them; returns [] if no request is open or steps are
        paused. Raises EngineDead if the core died, or the error of a step that did not run."""
        self._own.check()
        return self._mailbox.take(wait)

    # --- questions -------------------------------------------------------------------------------

    def ask(self, question: CoreQuestion[A]) -> A:
        self._own.check()
        answer = self._asking.ask(question)
        if question.runs_steps is not None:
            self._mailbox.pause(not question.runs_steps)
        return answer

    def state(self) -> CoreState:
        """The core's last reported state, with its age; never waits."""
        return self._heard.state

    @property
    def is_compiling(self) -> bool:
        return self._heard.state.compiling

    @property
    def weights_version(self) -> int:
        return self._heard.state.counts.weights_version

    # --- life and death --------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        return self._life.failure is None

    def check_process(self) -> None:
        self._own.check()

    def check_alive(self) -> None:
        self._own.check()
        self._life.check()

    def when_dead(self, tell: WhenDead) -> None:
        """Register a callback, called from a thread of this client when the core dies."""
        self._life.when_dead(tell)

    def die(self, reason: EngineDead) -> None:
        """Mark the core dead and fail everything that waits for it; the first reason counts."""
        self._life.end(reason)

    def dump_stacks(self) -> None:
        """Have the core write its threads' stacks to stderr, if this process owns it."""
        if self.child is not None:
            self.child.dump_stacks()

    def exited(self, how: str, seconds: float) -> None:
        """The core's process has exited; wait up to `seconds` for its own last message, which says
        more."""
        self._beginning.wait_for_end(seconds)
        self.die(EngineDead(f"{how}. {ADVICE}"))

    def shutdown(self) -> None:
        """Stop the core if this process owns it, else leave it to its other fronts. Idempotent; a
        no-op in a forked child."""
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
