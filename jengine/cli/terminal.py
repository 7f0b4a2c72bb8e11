"""Where a command reads and writes: answers on stdout, everything about them on stderr.

Tests hand in plain text buffers. Must not know commands or models.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TextIO

DIM, NORMAL = "\033[2m", "\033[0m"


@dataclass(frozen=True)
class Terminal:
    """The three streams of a command."""

    stdin: TextIO = field(default_factory=lambda: sys.stdin)
    stdout: TextIO = field(default_factory=lambda: sys.stdout)
    stderr: TextIO = field(default_factory=lambda: sys.stderr)

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
        line = self.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")
