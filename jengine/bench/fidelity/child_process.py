"""A child process that answers JSON requests, one per line, sequentially."""

from __future__ import annotations

import json
import signal
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from threading import TIMEOUT_MAX, Event, Timer
from types import TracebackType
from typing import Any, Self

import psutil

from jengine.errors import JengineError

SECONDS_TO_SAY_WHERE = 5.0


class ChildEnded(JengineError):
    """The child process exited without an answer."""


class EndsWithBlock(AbstractContextManager["EndsWithBlock"]):
    """A context manager over a child process: closes it at the end of the block, and kills it first
    after an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if error is not None:
            self.kill()
        self.close()

    @abstractmethod
    def kill(self) -> None:
        """End the process now."""

    @abstractmethod
    def close(self) -> None:
        """Let the process end."""


class ChildProcess(EndsWithBlock):
    def __init__(
        self, program: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._child = subprocess.Popen(  # noqa: S603
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, job: Mapping[str, Any], *, limit_s: float = TIMEOUT_MAX) -> Any:
        """Send a request and return the answer. Raises Ended on exit or after `seconds`."""
        assert self._child.stdin is not None and self._child.stdout is not None
        late = Event()
        timer = Timer(limit_s, self._give_up, [late])
        timer.start()
        try:
            self._child.stdin.write(json.dumps(job) + "\n")
            self._child.stdin.flush()
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:  # else this process could not end before the time is over
            timer.cancel()
        if not line:
            raise ChildEnded(
                f"no answer in {limit_s:g} s" if late.is_set() else self._how_it_ended()
            )
        return json.loads(line)

    def _give_up(self, late: Event) -> None:
        late.set()
        self.kill()

    def _how_it_ended(self) -> str:
        status = self._child.wait()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        return f"the process that answers has ended ({how}): see its messages above"

    def kill(self) -> None:
        """Kill the process and its children, dumping Python stacks through faulthandler."""
        if self._child.poll() is not None:
            return
        started = psutil.Process(self._child.pid).children(recursive=True)
        self._child.send_signal(signal.SIGABRT)
        try:
            self._child.wait(SECONDS_TO_SAY_WHERE)
        except subprocess.TimeoutExpired:
            self._child.kill()
        for one in started:
            if one.is_running():
                one.kill()

    def close(self) -> None:
        """Close its input and let it exit."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait()
        self._child.stdout.close()
