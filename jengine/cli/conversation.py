"""A conversation: messages by role, and the reading of messages that span several lines.

In: lines. Out: messages in the form that chat templates take. Must not know models or commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = '"""'
PROMPT, MORE = ">>> ", "... "
# Shows a prompt, returns a line, raises EOFError at the end.
ReadLine = Callable[[str], str]


@dataclass
class Conversation:
    """The system prompt and the turns so far."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        """All of it, in the form that `LLM.chat` takes."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def add(self, role: str, content: str) -> None:
        """Append a message."""
        self.turns.append({"role": role, "content": content})

    def drop_unanswered(self) -> bool:
        """Take back a user's message that has no answer: templates refuse two in a row from the
        same role. Says whether there was one."""
        if not self.turns or self.turns[-1]["role"] != "user":
            return False
        self.turns.pop()
        return True

    def reset(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()

    def save(self, file: Path) -> None:
        """Write it as a JSON list of messages."""
        text = json.dumps(self.messages, ensure_ascii=False, indent=2)
        file.write_text(text + "\n", encoding="utf-8")


def read_message(read_line: ReadLine) -> str:
    r'''One message. A line that ends in \ goes on; """ opens a block and closes it.'''
    line = read_line(PROMPT)
    if line.lstrip().startswith(BLOCK):
        return read_block(line.lstrip()[len(BLOCK) :], read_line)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        if not extend(lines, read_line):
            break
    return "\n".join(lines).rstrip()


def read_block(first: str, read_line: ReadLine) -> str:
    """The lines up to the one that ends with three quotes."""
    lines = [first]
    while not lines[-1].rstrip().endswith(BLOCK):
        if not extend(lines, read_line):
            return "\n".join(lines).strip("\n")
    lines[-1] = lines[-1].rstrip()[: -len(BLOCK)]
    return "\n".join(lines).strip("\n")


def extend(lines: list[str], read_line: ReadLine) -> bool:
    """Add a line, or return False: a message that the input's end cuts short still counts."""
    try:
        lines.append(read_line(MORE))
    except EOFError:
        return False
    return True
