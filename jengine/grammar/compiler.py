"""Compiles grammars in a few threads, with a deadline, and keeps what was compiled.

In: GrammarSpecs. Out: llguidance matchers in their first state, or RequestErrors that name what is
wrong. llguidance releases the GIL and bounds its own work, so a thread is never lost: a grammar
that takes longer than the deadline is refused, and its thread goes on to the next one soon after.
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

if TYPE_CHECKING:  # imported when the first grammar is compiled
    from llguidance import LLMatcher, LLTokenizer

DEADLINE = 5.0  # seconds of compiling one grammar
PATIENCE = 30.0  # seconds that one may wait for its turn
THREADS = 2
# Estimates of the memory of a compiled grammar, with what it remembers once it was followed: for
# itself, and per byte of its text. llguidance does not tell; regular expressions take 250 KB, lists
# of choices 120 bytes for each of theirs, schemas of any size less than this.
GRAMMAR_BYTES, TEXT_BYTES = 256 << 10, 112
CACHE_BYTES = 256 << 20
LONGEST_MESSAGE = 400
_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*?)\]")


class Compilation:
    """One grammar: waiting for its turn, being compiled, or compiled."""

    def __init__(self, spec: GrammarSpec) -> None:
        self.spec = spec
        self.bytes = GRAMMAR_BYTES + TEXT_BYTES * len(spec.text)
        self.future: Future[LLMatcher | None] | None = None
        self.began: float | None = None
        self.listeners: list[Callable[[], None]] = []

    @property
    def has_begun(self) -> bool:
        """Whether it has had its turn."""
        return self.began is not None

    def listen(self, tell: Callable[[], None]) -> None:
        """Call this when it has its turn, and when it ends; at once for what has happened."""
        assert self.future is not None, "made by begin"
        self.listeners.append(tell)
        self.future.add_done_callback(lambda _: tell())
        if self.has_begun:
            tell()

    @property
    def is_late(self) -> bool:
        """Whether it takes longer than is allowed."""
        return self.began is not None and time.monotonic() - self.began > DEADLINE

    @property
    def is_over(self) -> bool:
        """Whether `result` returns, or raises, without waiting."""
        return self.future is not None and (self.future.done() or self.is_late)

    def wait(self, seconds: float) -> bool:
        """Wait until it is over, but no longer than so many seconds. Whether it is."""
        assert self.future is not None, "made by begin"
        wait([self.future], seconds)
        return self.is_over

    def result(self) -> LLMatcher | None:
        """The matcher; None if grammars are only checked here. Raises what is wrong."""
        assert self.future is not None and self.is_over, "wait until it is over"
        if self.future.done():
            return self.future.result()
        raise RequestError(
            f"{NAME}.{self.spec.kind} takes longer than {DEADLINE:g} s to compile. Simplify it: "
            "large repetitions and many optional properties cost most."
        )


class GrammarCompiler:
    """Grammars by their source. Every method may be called from any thread.

    `tokenizer` makes the tokenizer when the first grammar is compiled, or before. Without one,
    grammars are only checked.
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
        """The tokenizer; None if grammars are only checked. Slow the first time."""
        with self._making:
            if self._tokenizer is None and self._make_tokenizer is not None:
                self._tokenizer = self._make_tokenizer()
        return self._tokenizer

    @property
    def kept_bytes(self) -> int:
        """What the kept grammars take, by estimate."""
        return self._bytes

    def prepare(self) -> None:
        """Import llguidance and make the tokenizer in a thread, before a grammar asks for them:
        beside running streams either one is a pause for all."""
        self._pool.submit(self._prepare)

    def begin(self, spec: GrammarSpec) -> Compilation:
        """The compilation of this grammar, which begins now unless it is known."""
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
        """Wait for the compiled grammar. Raises a RequestError if it is wrong or takes too long."""
        found, end = self.begin(spec), time.monotonic() + PATIENCE
        while not found.wait(0.1 if found.began is None else DEADLINE):
            if found.began is None and time.monotonic() > end:
                raise CapacityError(
                    f"{NAME}: other grammars have been compiled for {PATIENCE:g} s. Try again "
                    "later."
                )
        return found.result()

    def close(self) -> None:
        """Compile nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget_oldest(self) -> None:
        """Drop grammars that were not asked for lately. The newest, and unfinished ones, stay."""
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
        from jengine.grammar import guidance  # llguidance with it

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
    """llguidance's message on one line, of bounded length; unsupported keywords by their names."""
    keywords = _KEYWORDS.search(problem)
    if keywords:
        names = keywords[1].replace('"', "")
        return f"the keyword {names} of JSON schema is not supported. Leave it out."
    line = " ".join(problem.split())
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 3] + "..."
