"""Streams of a command: results on stdout, everything else on stderr.

Tests pass text buffers. Must not know commands or models.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from jengine.errors import JengineError, RequestError

DIM, NORMAL = "\033[2m", "\033[0m"


class OutputLost(JengineError):
    """Output cannot be written."""


@dataclass(frozen=True)
class Terminal:
    stdin: TextIO
    stdout: TextIO
    stderr: TextIO

    @property
    def interactive(self) -> bool:
        """Whether both input and output are a terminal."""
        return self.stdin.isatty() and self.stdout.isatty()

    def write(self, text: str) -> None:
        """Write text unchanged and flush. Raises OutputLost."""
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader closed the pipe: not an error
            raise OutputLost(f"The output cannot be written: {error.strerror}.") from error

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        """Writer for streamed text: word-wrapped on a terminal, unchanged otherwise."""
        if not self.stdout.isatty():
            yield self.write
            return
        wrapped = WordWrap(self.write, lambda: shutil.get_terminal_size().columns)
        try:
            yield wrapped
        finally:
            wrapped.end()

    def say(self, line: str = "") -> None:
        """Write a line of the result to stdout."""
        self.write(line + "\n")

    def note(self, line: str) -> None:
        """Write a line to stderr, away from redirected results."""
        dimmed = f"{DIM}{line}{NORMAL}" if self.stderr.isatty() else line
        print(dimmed, file=self.stderr, flush=True)

    def aside(self, text: str) -> None:
        """Write text to stderr, dimmed on a terminal."""
        self.stderr.write(f"{DIM}{text}{NORMAL}" if self.stderr.isatty() else text)
        self.stderr.flush()

    def read_line(self, prompt: str) -> str:
        """Read a line without its end. Raises EOFError. No prompt on a pipe."""
        if self.interactive:
            return input(prompt)
        line = self._decoded(self.stdin.readline)
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def read_all(self) -> str:
        return self._decoded(self.stdin.read)

    @staticmethod
    def _decoded(read: Callable[[], str]) -> str:
        try:
            return read()
        except UnicodeDecodeError as error:
            raise RequestError(f"stdin is not {error.encoding} text: {error.reason}.") from error


def standard_terminal() -> Terminal:
    """Process streams, with unencodable characters replaced.

    Closed streams (None) become the null device, so that no file opened later gets their
    descriptor.
    """
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return Terminal(sys.stdin, sys.stdout, sys.stderr)


class WordWrap:
    """Writer for a terminal whose `width()` may change; call `end` last."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int]) -> None:
        self._write, self._width = write, width
        self._column = 0
        self._gap = self._word = ""

    def __call__(self, text: str) -> None:
        """Write all complete words."""
        for character in text:
            if character == "\n":
                self.end()
                self._write("\n")
                self._column, self._gap = 0, ""
            elif character.isspace():
                self.end()
                self._gap += character.expandtabs(4)
            else:
                self._word += character
                if columns(self._word) >= self._width():  # wider than a line: write it now
                    self.end()

    def end(self) -> None:
        """Write the held-back word, on a new line if it does not fit."""
        if not self._word:
            return
        width = max(self._width(), 1)
        if self._gap and self._column and self._column + columns(self._gap + self._word) > width:
            self._write("\n")
            self._column, self._gap = 0, ""
        self._write(self._gap + self._word)
        self._column += columns(self._gap + self._word)
        # Column after a word wider than a line, which the terminal wraps.
        self._column -= (self._column - 1) // width * width
        self._gap = self._word = ""


def columns(text: str) -> int:
    """Display width: East Asian wide characters count 2, combining marks 0."""
    return sum(
        0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF")
        for one in text
    )
