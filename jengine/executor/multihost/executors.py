"""Runs plans in every process: the leader broadcasts each plan, read and call, and runs it too.

In: plans. Out: the same steps of each process's local runner; a step that fails in one process ends
all. Must not know requests.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import structs

from jengine.errors import RequestError
from jengine.executor.local import LocalExecutor
from jengine.executor.multihost.agreement import digest_of
from jengine.executor.multihost.channel import (
    FollowerChannel,
    LeaderChannel,
    failing_together,
    reports,
)
from jengine.executor.multihost.messages import (
    CallProcesses,
    FetchesEnded,
    Report,
    RunPlan,
    SampleDigest,
    StepRead,
)
from jengine.executor.protocol import PendingOutput, WorkerHealth
from jengine.executor.read_step import ReadStep
from jengine.outputs import StepOutput
from jengine.plan import Plan, Transfers
from jengine.runner.transfers.transfer_runner import REST

# No follower can be further behind: a step runs in all processes or in none.
DIGESTS_KEPT = 64


class LeadingExecutor:
    """The leader's executor: broadcasts plans, reads and calls, and runs them here too."""

    def __init__(self, local: LocalExecutor, channel: LeaderChannel, compare_every: int) -> None:
        self._local = local
        self._channel = channel
        self._trace = StepDigest(compare_every)
        self._digests: dict[int, bytes] = {}
        self._fetches = FetchTally(channel.ranks)

    def submit(self, plan: Plan) -> PendingOutput:
        if plan.transfers is not None:
            self._fetches.began(plan.transfers)
        self._channel.step = plan.step
        with failing_together(self._channel):
            self._channel.broadcast(RunPlan(plan))
            return ReadStep(self._local.submit(plan), partial(self._read, plan))

    def _read(self, plan: Plan, step: PendingOutput) -> StepOutput:
        """Wait for a step's output, and have the followers read it too."""
        channel = self._channel
        channel.read_all()
        with channel.inside_step():
            has_left = step.has_left
            if not has_left:  # followers must queue the remaining pipeline stages too
                channel.broadcast(StepRead(plan.step))
            output = step.result()
            if has_left:
                channel.broadcast(StepRead(plan.step))
            self._digests.update(self._trace.add(plan, output))
            while len(self._digests) > DIGESTS_KEPT:
                del self._digests[next(iter(self._digests))]
            self._compare_samples(plan.step)
            return output._replace(transfers_done=self._ended_fetches(plan, output))

    def _ended_fetches(self, plan: Plan, output: StepOutput) -> dict[int, bool]:
        """KV fetches that have completed in every process."""
        fetches, said = self._fetches, self._channel.fetches
        fetches.ended(self._channel.rank, output.transfers_done)
        if not (plan.runs_step or said) and fetches.is_waiting:
            self._channel.read(REST)  # with nothing to run, wait rather than poll by empty plans
        while said:
            fetches.ended(*said.popleft())
        return fetches.take()

    def _compare_samples(self, read: int) -> None:
        """End all processes if a follower sampled different tokens up to the step `read`."""
        samples = self._channel.samples
        while samples and samples[0][1].step <= read:
            rank, sampled = samples.popleft()
            if sampled.digest != self._digests[sampled.step]:
                self._channel.end_all(
                    f"by step {sampled.step} process {rank} has run or sampled something else "
                    f"than process {self._channel.rank}; are its weights, devices and versions the "
                    "same?"
                )

    def update_weights(self, values: Any) -> None:
        """Replace the parameters from the next plan on. Not broadcast: every process calls it."""
        self._local.update_weights(values)

    def call_workers(self, method: str, arguments: bytes) -> list[bytes]:
        self._channel.broadcast(CallProcesses(method, arguments))
        return self.join_call(method, arguments)

    def join_call(
        self, method: str, arguments: bytes, meanwhile: Callable[[], None] = lambda: None
    ) -> list[bytes]:
        """Run a worker call that followers run too; compare the calls and collect the answers."""
        verdict = self._channel.agree(call_report(self._local, method, arguments), meanwhile)
        if verdict.problem is not None:
            raise RequestError(verdict.problem)
        return verdict.answers

    def health(self) -> list[WorkerHealth]:
        (own,) = self._local.health()
        return [structs.replace(own, rank=self._channel.rank), *self._channel.health()]

    def shutdown(self) -> None:
        self._channel.leave("it was shut down")
        self._local.shutdown()


class FollowingExecutor:
    """A follower's executor: runs the leader's plans, and reads outputs when the leader does."""

    def __init__(self, local: LocalExecutor, channel: FollowerChannel, compare_every: int) -> None:
        self._local = local
        self._channel = channel
        self._trace = StepDigest(compare_every)
        self._pending: deque[tuple[Plan, PendingOutput]] = deque()

    def submit(self, plan: Plan) -> None:
        """Queue the step of a plan received from the leader."""
        with failing_together(self._channel):
            assert plan.step == self._channel.step + 1, f"{plan.step} follows {self._channel.step}"
            self._channel.step = plan.step
            self._pending.append((plan, self._local.submit(plan)))

    def read_up_to(self, step: int) -> None:
        """Wait for all steps up to the one that the leader has read."""
        with failing_together(self._channel):
            while self._pending and self._pending[0][0].step <= step:
                plan, pending = self._pending.popleft()
                output = pending.result()
                for number, digest in self._trace.add(plan, output):
                    self._channel.send(SampleDigest(number, digest))
                if output.transfers_done:
                    self._channel.send(FetchesEnded(output.transfers_done))

    def report(self, method: str, arguments: bytes) -> Report:
        """Run a worker call and report its result to the leader."""
        return call_report(self._local, method, arguments)

    def health(self) -> list[WorkerHealth]:
        (own,) = self._local.health()
        return [*self._channel.health(), structs.replace(own, rank=self._channel.rank)]

    def update_weights(self, values: Any) -> None:
        self._local.update_weights(values)

    def shutdown(self) -> None:
        self._pending.clear()
        self._channel.leave("it was shut down")
        self._local.shutdown()


def call_report(local: LocalExecutor, method: str, arguments: bytes) -> Report:
    """Digest a worker call for comparison, with this process's answer attached."""
    (own,) = local.call_workers(method, arguments)
    return reports("calls", [(method, digest_of(arguments))], answer=own)


DIGEST_SIZE = 16


class StepDigest:
    """Running digest of steps in order, due for comparison after every `every` steps."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._steps = 0

    def add(self, plan: Plan, output: StepOutput) -> Iterator[tuple[int, bytes]]:
        """Add a finished step; yields (step number, digest) when one is due. Plans that run no step
        are not counted: processes may differ in how many they have seen."""
        self._digest.update(msgspec.msgpack.encode((plan, output.tokens.tolist())))
        self._steps += plan.runs_step
        if plan.runs_step and self._steps % self._every == 0:
            yield plan.step, self._digest.digest()


class FetchTally:
    """KV fetches still in progress in at least one process."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = frozenset(ranks)
        self._missing: dict[int, set[int]] = {}  # number -> processes in which it has not ended
        self._failed: set[int] = set()
        self._ended: dict[int, bool] = {}  # in all processes, not taken yet

    @property
    def is_waiting(self) -> bool:
        return bool(self._missing)

    def began(self, transfers: Transfers) -> None:
        """Register the fetches of a plan; a reset forgets earlier ones."""
        if transfers.reset:
            self._missing.clear()
            self._failed.clear()
            self._ended.clear()
        for fetch in transfers.fetches:
            self._missing[fetch.number] = set(self._ranks)

    def ended(self, rank: int, done: Mapping[int, bool]) -> None:
        """Record fetches completed by process `rank`: number → success."""
        for number, succeeded in done.items():
            missing = self._missing.get(number)
            if missing is None:
                continue  # it began before a reset
            missing.discard(rank)
            if not succeeded:
                self._failed.add(number)
            if not missing:
                del self._missing[number]
                self._ended[number] = number not in self._failed
                self._failed.discard(number)

    def take(self) -> dict[int, bool]:
        """Fetches that all processes have completed since the last call: number → whether all
        succeeded."""
        ended, self._ended = self._ended, {}
        return ended
