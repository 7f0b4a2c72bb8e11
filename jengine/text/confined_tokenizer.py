"""Tokenizes in killable processes, for texts that would block others here.

In: untrusted texts and conversations. Out: the results of `Tokenizer`, or RequestError if the
deadline or memory limit is exceeded. Each process has its own tokenizer.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jengine.confined.process_pool import ConfinedPool
from jengine.errors import RequestError
from jengine.text import tokenizer_calls as calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROGRAM: Final = "jengine.text.tokenizing_process"


class ConfinedTokenizer:
    """Pool of at most `size` processes, started with the first text."""

    def __init__(
        self, hf: PreTrainedTokenizerBase, *, size: int, seconds: float, most_bytes: int
    ) -> None:
        self._hf = hf
        self._most_bytes = most_bytes
        self._folder: Path | None = None
        self.pool = ConfinedPool(PROGRAM, self._job, size=size, seconds=seconds, what="The prompt")

    def encode(
        self, text: str, special: bool, max_tokens: int | None, side: calls.Side | None
    ) -> list[int]:
        return unpacked(self._ask(calls.Encode(text, special, max_tokens, side)))

    def encode_plain(self, text: str) -> list[int]:
        """Token ids, with special tokens in the text treated as plain text."""
        return unpacked(self._ask(calls.EncodePlain(text)))

    def encode_pair(
        self, first: str, second: str, max_tokens: int | None
    ) -> tuple[list[int], list[int]]:
        """Token ids and token types of a text pair."""
        count, *both = unpacked(self._ask(calls.EncodePair(first, second, max_tokens)))
        return both[:count], both[count:]

    def beginning(self, text: str, tokens: int) -> str:
        """Longest prefix of the text with at most `tokens` tokens."""
        return text[: int(self._ask(calls.Beginning(text, tokens)))]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        found = self._ask(calls.Decode(ids, skip_special_tokens))
        return found.decode("utf-8", "surrogatepass")

    def run_template(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str:
        """Run a chat template in a process."""
        asked = calls.RunTemplate(json.dumps(messages), json.dumps(options))
        return self._ask(asked).decode("utf-8", "surrogatepass")

    def close(self) -> None:
        self.pool.close()

    def _ask(self, call: calls.Call) -> bytearray:
        try:
            asked = calls.encoder.encode(call)
        except (UnicodeEncodeError, OverflowError) as error:
            raise RequestError(f"The prompt cannot be read: {error}.") from None
        return self.pool.ask(asked)

    def _job(self) -> bytes:
        if self._folder is None:
            self._folder = self._own_folder()
        return msgspec.msgpack.encode({"folder": str(self._folder), "most_bytes": self._most_bytes})

    def _own_folder(self) -> Path:
        """Temporary folder with this tokenizer's files, removed with this object."""
        folder = Path(tempfile.mkdtemp(prefix="jengine-tokenizer-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._hf.save_pretrained(folder)
        return folder


def unpacked(found: bytearray) -> list[int]:
    """Decode packed integers."""
    return array("i", bytes(found)).tolist()
