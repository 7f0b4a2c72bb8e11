"""Where a command reads and writes: answers on stdout, everything about them on stderr.

Tests hand in plain text buffers. Must not know commands or models.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

from jengine.errors import RequestError

DIM, NORMAL = "\033[2m", "\033[0m"


@dataclass(frozen=True)
class Terminal:
    """The three streams of a command."""

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO

    @property
    def interactive(self) -> bool:
        """Whether a person types and reads here."""
        return self.stdin.isatty() and self.stdout.isatty()

    def write(self, text: str) -> None:
        """Part of an answer, shown at once."""
        self.stdout.write(text)
        self.stdout.flush()

    def say(self, line: str = "") -> None:
        """A line of what the user asked for."""
        self.write(line + "\n")

    def note(self, line: str) -> None:
        """A line about it, which must not end up in a file with the answers."""
        dimmed = f"{DIM}{line}{NORMAL}" if self.stderr.isatty() else line
        print(dimmed, file=self.stderr, flush=True)

    def read_line(self, prompt: str) -> str:
        """The next line without its end; EOFError when there is none. A pipe sees no prompt."""
        if self.interactive:
            return input(prompt)
        line = self._decoded(self.stdin.readline)
        if not line:
            raise EOFError
        return line.rstrip("\r\n")

    def read_all(self) -> str:
        """Everything on stdin."""
        return self._decoded(self.stdin.read)

    @staticmethod
    def _decoded(read: Callable[[], str]) -> str:
        try:
            return read()
        except UnicodeDecodeError as error:
            raise RequestError(f"stdin is not {error.encoding} text: {error.reason}.") from error


def standard_terminal() -> Terminal:
    """The process's own streams. A letter that the terminal cannot show must not end an answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    return Terminal(sys.stdin, sys.stdout, sys.stderr)
