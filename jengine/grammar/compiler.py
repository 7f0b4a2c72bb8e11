"""Compiles grammars in a few threads, with a deadline, and caches them.

In: GrammarSpecs. Out: llguidance matchers in their initial state, or RequestErrors that name the
problem. llguidance releases the GIL and bounds its own work, so a thread is never lost: a grammar
past the deadline is refused, and its thread becomes free soon after.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from jengine.errors import CapacityError, JengineError, RequestError
from jengine.structured_outputs import NAME, GrammarSpec

if TYPE_CHECKING:  # imported with the first grammar
    from llguidance import LLMatcher, LLTokenizer

DEADLINE = 5.0  # seconds of compiling one grammar
PATIENCE = 30.0  # seconds in the queue
THREADS = 2
# Estimated memory of a compiled grammar, including llguidance's caches once it was followed: a
# constant, and per byte of its text. llguidance does not report it; regular expressions take 250
# KB, lists of choices 120 bytes per choice, schemas of any size less.
GRAMMAR_BYTES, TEXT_BYTES = 256 << 10, 112
CACHE_BYTES = 256 << 20
LONGEST_MESSAGE = 400
_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*?)\]")


class Compilation:
    """A grammar that is queued, compiling, or compiled."""

    def __init__(self, spec: GrammarSpec) -> None:
        self.spec = spec
        self.bytes = GRAMMAR_BYTES + TEXT_BYTES * len(spec.text)
        self.future: Future[LLMatcher | None] | None = None
        self.began: float | None = None
        self.listeners: list[Callable[[], None]] = []

    @property
    def has_begun(self) -> bool:
        """Whether compiling has started."""
        return self.began is not None

    def listen(self, tell: Callable[[], None]) -> None:
        """Call back when compiling starts and when it ends; immediately for past events."""
        assert self.future is not None, "made by begin"
        self.listeners.append(tell)
        self.future.add_done_callback(lambda _: tell())
        if self.has_begun:
            tell()

    @property
    def is_late(self) -> bool:
        """Whether compiling exceeds the deadline."""
        return self.began is not None and time.monotonic() - self.began > DEADLINE

    @property
    def is_over(self) -> bool:
        """Whether `result` returns or raises without waiting."""
        return self.future is not None and (self.future.done() or self.is_late)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end; returns whether it is over."""
        assert self.future is not None, "made by begin"
        wait([self.future], seconds)
        return self.is_over

    def result(self) -> LLMatcher | None:
        """The matcher, or None if grammars are only validated here. Raises RequestError."""
        assert self.future is not None and self.is_over, "wait until it is over"
        if self.future.done():
            return self.future.result()
        raise RequestError(
            f"{NAME}.{self.spec.kind} takes longer than {DEADLINE:g} s to compile. Simplify it: "
            "large repetitions and many optional properties cost most."
        )


class GrammarCompiler:
    """Cache of compilations by source. Thread-safe.

    `tokenizer` makes the tokenizer for the first grammar. Without one, grammars are only validated.
    """

    def __init__(
        self,
        tokenizer: Callable[[], LLTokenizer] | None = None,
        *,
        threads: int = THREADS,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._make_tokenizer = tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._cache_bytes = cache_bytes
        self._known: OrderedDict[GrammarSpec, Compilation] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="jengine-grammar")

    @property
    def tokenizer(self) -> LLTokenizer | None:
        """The tokenizer, or None if grammars are only validated. Slow the first time."""
        with self._making:
            if self._tokenizer is None and self._make_tokenizer is not None:
                self._tokenizer = self._make_tokenizer()
        return self._tokenizer

    @property
    def kept_bytes(self) -> int:
        """Estimated bytes of cached grammars."""
        return self._bytes

    def prepare(self) -> None:
        """Import llguidance and make the tokenizer in a thread, before a grammar needs them; either
        stalls all running streams."""
        self._pool.submit(self._prepare)

    def begin(self, spec: GrammarSpec) -> Compilation:
        """Start compiling a grammar, unless it is cached or running."""
        source = spec.source
        with self._lock:
            found = self._known.get(source)
            if found is None:
                found = self._known[source] = Compilation(source)
                self._bytes += found.bytes
                found.future = self._pool.submit(self._compile, found)
                self._forget_oldest()
            self._known.move_to_end(source)
        return found

    def compiled(self, spec: GrammarSpec) -> LLMatcher | None:
        """Wait for a compiled grammar. Raises RequestError if it is invalid or slow to compile,
        CapacityError if the queue is slow."""
        found, end = self.begin(spec), time.monotonic() + PATIENCE
        while not found.wait(0.1 if found.began is None else DEADLINE):
            if found.began is None and time.monotonic() > end:
                raise CapacityError(
                    f"{NAME}: other grammars have been compiled for {PATIENCE:g} s. Try again "
                    "later."
                )
        return found.result()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget_oldest(self) -> None:
        """Evict least recently used grammars, except the newest and unfinished ones."""
        for source, kept in list(self._known.items())[:-1]:
            if self._bytes <= self._cache_bytes:
                return
            if kept.is_over:
                del self._known[source]
                self._bytes -= kept.bytes

    def _prepare(self) -> None:
        from jengine.grammar import guidance  # noqa: F401 - llguidance with it

        self.tokenizer  # noqa: B018 - made when it is first asked for

    def _compile(self, job: Compilation) -> LLMatcher | None:
        from jengine.grammar import guidance  # imports llguidance

        tokenizer = self.tokenizer
        job.began = time.monotonic()
        for tell in job.listeners:
            tell()
        try:
            matcher, problem = guidance.compiled(job.spec, tokenizer)
        except JengineError:
            raise
        except Exception as error:  # noqa: BLE001 - a user's grammar must not end anything
            problem, matcher = f"{type(error).__name__}: {error}", None
        if problem:
            raise RequestError(f"{NAME}.{job.spec.kind}: {explained(problem)}")
        return matcher


def explained(problem: str) -> str:
    """llguidance's message as one bounded line, naming unsupported keywords."""
    keywords = _KEYWORDS.search(problem)
    if keywords:
        names = keywords[1].replace('"', "")
        return f"the keyword {names} of JSON schema is not supported. Leave it out."
    line = " ".join(problem.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."
