"""Chat history, and multi-line input of messages.

In: lines. Out: messages as chat templates take them. Must not know models or commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = '"""'
PROMPT, MORE = ">>> ", "... "
# Shows a prompt and returns a line; raises EOFError at end of input.
ReadLine = Callable[[str], str]


@dataclass
class ChatConversation:
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, system prompt included, as `LLM.chat` takes them."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def add(self, role: str, content: str) -> None:
        self.turns.append({"role": role, "content": content})

    def drop_unanswered(self) -> bool:
        """Remove a trailing user message without an answer, since templates refuse two in a row.
        Returns whether there was one."""
        if not self.turns or self.turns[-1]["role"] != "user":
            return False
        self.turns.pop()
        return True

    def reset(self) -> None:
        """Drop all turns except the system prompt."""
        self.turns.clear()

    def save(self, file: Path) -> None:
        text = json.dumps(self.messages, ensure_ascii=False, indent=2)
        file.write_text(text + "\n", encoding="utf-8")


def read_message(read_line: ReadLine) -> str:
    """Read one message. A trailing backslash continues the line; three double quotes open and close
    a block."""
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
    """Read lines up to one that ends with three double quotes."""
    lines = [first]
    while not lines[-1].rstrip().endswith(BLOCK):
        if not extend(lines, read_line):
            return "\n".join(lines).strip("\n")
    lines[-1] = lines[-1].rstrip()[: -len(BLOCK)]
    return "\n".join(lines).strip("\n")


def extend(lines: list[str], read_line: ReadLine) -> bool:
    """Append a line, or return False at end of input: a truncated message still counts."""
    try:
        lines.append(read_line(MORE))
    except EOFError:
        return False
    return True
