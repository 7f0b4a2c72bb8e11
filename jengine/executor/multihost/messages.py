"""The messages between processes of one engine. Must not know sockets."""

from __future__ import annotations

from jengine.executor.protocol import Capacity, WorkerHealth
from jengine.outputs import Counts, StepOutput, TokenDelta
from jengine.plan import Plan
from jengine.wire.frames import MOST_BYTES
from jengine.wire.message import Message, Reader


class Heartbeat(Message, frozen=True):
    """Sent periodically; `step` is the last step that the sender has begun."""

    step: int


class RunPlan(Message, frozen=True):
    """Leader: run this plan."""

    plan: Plan


class StepDone(Message, frozen=True):
    """Leader, where followers have readers too: the token deltas of its last step."""

    deltas: list[TokenDelta]
    counts: Counts


class StepRead(Message, frozen=True):
    """Leader: steps up to `read` have been read, or are being read in a pipeline."""

    read: int


class FollowerAbort(Message, frozen=True):
    """A follower's client cancelled this request."""

    request_id: str


class RequestAborted(Message, frozen=True):
    """Leader: this request was aborted, or had already finished (no delta)."""

    request_id: str
    delta: TokenDelta | None


class ReportDue(Message, frozen=True):
    """Leader: send report `number` now."""

    number: int


class Report(Message, frozen=True):
    """Follower: digests of what this process is about to do, compared by the leader; optionally a
    number (the minimum is agreed on) or the answer of a call."""

    subject: str
    names: list[str]
    digests: list[bytes]
    number: int = 0
    answer: bytes = b""


class Verdict(Message, frozen=True):
    """Leader: the disagreement among the reports if any, their smallest number, and the names of
    the reported requests."""

    problem: str | None
    least: int
    names: list[str]
    answers: list[bytes] = []  # each report's `answer`, by rank


class CallProcesses(Message, frozen=True):
    """Driver to leader, and leader to followers: run one of `executor.calls.CALLS`."""

    method: str
    arguments: bytes


class WorkerAnswers(Message, frozen=True):
    """Leader to driver: each process's answer to a call, by rank."""

    answers: list[bytes]


class AskWorkersHealth(Message, frozen=True):
    """Driver: asks for the health of every worker."""


class WorkersHealth(Message, frozen=True):
    workers: list[WorkerHealth]


class LeaderReady(Message, frozen=True):
    """Leader to driver: loaded and compiled; plans may be submitted."""

    capacity: Capacity


class StepResult(Message, frozen=True):
    """Leader to driver: the output of the oldest unanswered plan."""

    output: StepOutput


class StepRefused(Message, frozen=True):
    """Leader to driver: the oldest unanswered plan did not run, and why."""

    problem: str


class SampleDigest(Message, frozen=True):
    """Follower: digest of all plans and sampled tokens up to a step."""

    step: int
    digest: bytes


class FetchesEnded(Message, frozen=True):
    """Follower: numbers of KV fetches that ended in this process, and whether each succeeded."""

    done: dict[int, bool]


class Fatal(Message, frozen=True):
    """The engine cannot go on in any process."""

    reason: str


class Goodbye(Message, frozen=True):
    """This process leaves on purpose."""

    reason: str


AnyMessage = (
    Heartbeat
    | RunPlan
    | StepDone
    | StepRead
    | FollowerAbort
    | RequestAborted
    | ReportDue
    | Report
    | Verdict
    | SampleDigest
    | FetchesEnded
    | Fatal
    | Goodbye
    | CallProcesses
    | WorkerAnswers
    | AskWorkersHealth
    | WorkersHealth
    | LeaderReady
    | StepResult
    | StepRefused
)
# Connections bound the size of a frame.
decode = Reader[AnyMessage](AnyMessage, "a process", MOST_BYTES)
