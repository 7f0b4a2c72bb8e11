"""Compiles programs that warm-up did not cover, in a thread, while steps run.

In: keys of programs. Out: programs, for all replicas, or the error of each that failed. Must not
know requests.

A request waits only for its own programs, parked by a scheduler gate
(`distributed/program_gate.py`); if one does not compile, the request ends with that error. This is
for requests that arrive before warm-up has ended, and for those with user callbacks.

Sampling options never compile the model: the sampler and other heads are about a dozen small
programs, for a few numbers of slots, compiled at the start. Only where forward and sampler cannot
be queued one after the other are they one program (`runner/step/composed.py`): in multi-step
decode, and for drafts with recurrent layers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Sequence

from jengine.runner.programs.background import lower_priority
from jengine.runner.programs.programs import Programs
from jengine.runner.programs.warm_up import compile_in_turn
from jengine.runner.variants.program_list import Key

logger = logging.getLogger(__name__)


class LatePrograms:
    """Compiles requested programs in order, in a thread that runs while there are any; it ends with
    its engine or the process."""

    def __init__(self, replicas: Sequence[Programs]) -> None:
        # Weak, so that an abandoned engine is freed.
        self._replicas = [weakref.ref(programs) for programs in replicas]
        self._asked: dict[Key, None] = {}
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self.failures: dict[Key, Exception] = {}

    def ask(self, keys: Iterable[Key]) -> None:
        """Queue these programs, except those already asked for or failed."""
        with self._lock:
            new = [key for key in keys if key not in self._asked and key not in self.failures]
            self._asked.update(dict.fromkeys(new))
            if new and self._thread is None and not self._stopped:
                # Not a daemon: killing a thread inside the compiler crashes the process.
                self._thread = threading.Thread(target=self._run, name="jengine-late-programs")
                self._thread.start()

    def finish(self) -> None:
        """Wait until every requested program is compiled."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        """Stop after the program that is being compiled, and wait for it."""
        with self._lock:
            self._stopped = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        lower_priority()
        while (key := self._next()) is not None:
            self._compile(key)

    def _next(self) -> Key | None:
        with self._lock:
            goes_on = not self._stopped and threading.main_thread().is_alive()
            key = next(iter(self._asked), None) if goes_on else None
            if key is None:
                self._thread = None
            return key

    def _compile(self, key: Key) -> None:
        replicas = [programs for one in self._replicas if (programs := one()) is not None]
        lacking = [programs for programs in replicas if programs.missing([key])]
        try:
            for programs, compiled, entry in compile_in_turn(lacking, key):
                entry.beside_steps = True
                programs.keep(compiled, entry)
        except Exception as error:  # fails the requests that wait for it
            self.failures[key] = error
            logger.exception("compiling %s with features %s failed", *key)
        with self._lock:
            del self._asked[key]
        for programs in replicas:
            programs.tell()
