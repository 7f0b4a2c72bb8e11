"""RPCs from a front to a core ("questions"): each class holds the arguments, and `answer` runs in
the core's process.

In and out: plain data, as the core may be in another process; several cores' answers are merged
into one. To add one, write a class and name it in `AnyQuestion`.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec.structs import asdict

from jengine.counts import Counts, together
from jengine.errors import RequestError
from jengine.executor.calls import decoded_answers, encoded_arguments
from jengine.executor.protocol import WorkerHealth
from jengine.wire.message import Question

if TYPE_CHECKING:
    from jengine.engine.in_process import InProcessClient

A = TypeVar("A")


class CoreQuestion(Question[A], Generic[A], frozen=True):
    """A question to a core."""

    waits: ClassVar[bool] = True  # answered between two steps
    runs_steps: ClassVar[bool | None] = None  # False: pauses steps; True: resumes them

    def answer(self, client: InProcessClient) -> A:
        """Compute the answer, in the core's process."""
        raise NotImplementedError

    def together(self, answers: Collection[A]) -> A:
        """Merge the answers of several cores."""
        raise NotImplementedError


class CoreOrder(CoreQuestion[None], frozen=True):
    """A question without a result: the answer confirms completion."""

    def together(self, answers: Collection[None]) -> None: ...


class Settle(CoreOrder, frozen=True):
    """Pass everything queued so far to the scheduler."""

    def answer(self, client: InProcessClient) -> None:
        """Nothing to do: the queue is consumed before any question."""


class AskStats(CoreQuestion[Counts], frozen=True):
    """Request and cache counts."""

    def answer(self, client: InProcessClient) -> Counts:
        return client.counts()

    def together(self, answers: Collection[Counts]) -> Counts:
        return together(list(answers))


class CallWorkers(CoreQuestion[list[bytes]], frozen=True):
    """Call one of `executor.calls.CALLS` in every worker process; results by rank."""

    method: str
    arguments: bytes

    def answer(self, client: InProcessClient) -> list[bytes]:
        return client.core.call_workers(self.method, self.arguments)

    def together(self, answers: Collection[list[bytes]]) -> list[bytes]:
        return list(chain.from_iterable(answers))


class ResetPrefixCache(CoreQuestion[bool], frozen=True):
    """Clear the prefix cache; False if requests are using the cache."""

    reset_running_requests: bool = False

    def answer(self, client: InProcessClient) -> bool:
        return client.core.reset_prefix_cache(self.reset_running_requests)

    def together(self, answers: Collection[bool]) -> bool:
        return all(answers)


class AskHealth(CoreQuestion[list[WorkerHealth]], frozen=True):
    """Health of every worker process; answered during steps too."""

    waits = False

    def answer(self, client: InProcessClient) -> list[WorkerHealth]:
        client.check_alive()
        return client.core.health()

    def together(self, answers: Collection[list[WorkerHealth]]) -> list[WorkerHealth]:
        return list(chain.from_iterable(answers))


class Probe(CoreOrder, frozen=True):
    """Run an empty step to completion; only while no request runs."""

    def answer(self, client: InProcessClient) -> None:
        client.sleeping.check_awake()
        counts = client.core.counts()
        if client.core.has_work and counts.running + counts.waiting:
            raise RequestError(
                "health(probe=True) while requests run: their steps show as much. Finish them "
                "first, or leave probe out."
            )
        client.core.probe()


class Pause(CoreOrder, frozen=True):
    """Run no steps until `Resume`; answered when the current one has ended."""

    waits = False
    runs_steps = False

    def answer(self, client: InProcessClient) -> None:
        """Wake the step loop if it waits for work, so that it pauses at once."""
        client.ring()


class Resume(CoreOrder, frozen=True):
    """Run steps again. Raises EngineAsleep if memory is asleep."""

    waits = False
    runs_steps = True

    def answer(self, client: InProcessClient) -> None:
        client.sleeping.check_awake()


class Sleep(CoreOrder, frozen=True):
    """Free the memory named by the tags; level 1 keeps parameters on the host, level 2 drops them.

    Steps in flight end first; running requests are preempted until everything is awake. No steps
    run until then.
    """

    runs_steps = False
    level: int
    tags: list[str]

    def answer(self, client: InProcessClient) -> None:
        client.take_blocks()
        answers = client.core.call_workers("sleep", encoded_arguments("sleep", asdict(self)))
        client.sleeping.note(decoded_answers("sleep", answers), self.level)


class WakeUp(CoreQuestion[bool], frozen=True):
    """Restore the memory named by the tags; the answer is whether everything is awake."""

    tags: list[str]

    def answer(self, client: InProcessClient) -> bool:
        answers = client.core.call_workers("wake_up", encoded_arguments("wake_up", asdict(self)))
        client.sleeping.note(decoded_answers("wake_up", answers))
        return not client.sleeping.tags

    def together(self, answers: Collection[bool]) -> bool:
        return all(answers)


class ReloadWeights(CoreOrder, frozen=True):
    """Reload parameters from the model's folder; running requests are preempted, as cached blocks
    may belong to other parameters."""

    def answer(self, client: InProcessClient) -> None:
        client.take_blocks()
        answers = client.core.call_workers("reload_weights", encoded_arguments("reload_weights"))
        client.sleeping.note(decoded_answers("reload_weights", answers))


class ResizeCache(CoreOrder, frozen=True):
    """Resize the KV cache, keeping as much of its contents as fits."""

    num_bytes: int

    def answer(self, client: InProcessClient) -> None:
        client.sleeping.check_awake()
        client.deliver(client.core.resize_cache(self.num_bytes))


AnyQuestion = (
    Settle | AskStats | CallWorkers | ResetPrefixCache | AskHealth | Probe | Pause | Resume | Sleep
    | WakeUp | ReloadWeights | ResizeCache
)  # fmt: skip
