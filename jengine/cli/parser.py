"""argparse parser that treats dashes and underscores alike and suggests similar flags.

In: a command's arguments. Out: a namespace, or a message and exit status 2. Must not know commands
or settings.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TextIO

from jengine.errors import nearest_name


class Parser(argparse.ArgumentParser):
    """Parser of one command. `unbuilt`: unsupported flags of other engines, with the reason."""

    def __init__(self, *, stderr: TextIO, **rest: Any) -> None:
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **rest
        )
        self.stderr = stderr
        self.unbuilt: Mapping[str, str] = {}
        self.where = ""  # source of the words, if not the command line

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse; flags and positional arguments may be interleaved."""
        parsed, unknown = self.parse_known_intermixed_args(plain_words(words))
        if unknown:
            self.error(self._why_unknown(unknown[0]))
        return parsed

    def takes_several(self, flag: str) -> bool:
        action = self._option_string_actions.get(flag)
        return action is None or action.nargs == "+" or isinstance(action, argparse._AppendAction)

    def error(self, message: str) -> NoReturn:
        """Print the problem and where to look; exit status 2."""
        print(f"{self.prog}: error: {self.where}{message}", file=self.stderr)
        print(f"See {self.prog} --help.", file=self.stderr)
        sys.exit(2)

    def _why_unknown(self, word: str) -> str:
        flag = word.split("=", 1)[0]
        if not flag.startswith("-"):
            return f"unexpected argument {word!r}."
        if flag in self.unbuilt:
            return f"{flag}: {self.unbuilt[flag]}."
        # Compared without the dashes, which would make any two short flags alike.
        known = [one.lstrip("-") for one in self._option_string_actions]
        return f"unknown flag {flag}.{nearest_name(flag.lstrip('-'), known, before='--')}"


class FlexibleArgumentParser(argparse.ArgumentParser):
    """For users' own scripts: accepts flags as `jengine` does, dashes and underscores alike."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse, with `--flag.key value` collected into a JSON object."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(plain_words(words), namespace)


def plain_words(words: Sequence[str]) -> list[str]:
    """Normalise flags: dashes for underscores, `--flag.key value` as JSON."""
    result: list[str] = []
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if word == "--":
            return [*result, word, *rest]
        name, equals, value = word.partition("=")
        flag, dot, key = name.partition(".")
        if not word.startswith("--"):
            result.append(word)
        elif not dot:
            result.append(f"{flag.replace('_', '-')}{equals}{value}")
        elif equals or (rest and not rest[0].startswith("--")):
            part = {key.replace("-", "_"): value if equals else rest.popleft()}
            result.append(f"{flag.replace('_', '-')}={json.dumps(part)}")
        else:
            # Without its value, argparse says what is missing.
            result.append(flag.replace("_", "-"))
    return result
