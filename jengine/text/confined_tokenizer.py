"""A tokenizer in processes that can be killed: for texts that would hold up all others here.

In: texts and conversations of strangers. Out: what `Tokenizer` gives, or a RequestError once the
deadline of the errand or the memory of a process is over. Every process has a tokenizer of its own.
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

from jengine.confined.pool import ConfinedPool
from jengine.errors import RequestError
from jengine.text import tokenizer_calls as calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROGRAM: Final = "jengine.text.tokenizing_process"


class ConfinedTokenizer:
    """Answers by at most `size` processes, which start with the first text."""

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
        """Token ids of a text."""
        return unpacked(self._ask(calls.Encode(text, special, max_tokens, side)))

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text in which special tokens are text like any other."""
        return unpacked(self._ask(calls.EncodePlain(text)))

    def encode_pair(
        self, first: str, second: str, max_tokens: int | None
    ) -> tuple[list[int], list[int]]:
        """Token ids of two texts, and the type of each token."""
        count, *both = unpacked(self._ask(calls.EncodePair(first, second, max_tokens)))
        return both[:count], both[count:]

    def beginning(self, text: str, tokens: int) -> str:
        """The text's beginning that has at most so many tokens."""
        return text[: int(self._ask(calls.Beginning(text, tokens)))]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        """The text of token ids."""
        found = self._ask(calls.Decode(ids, skip_special_tokens))
        return found.decode("utf-8", "surrogatepass")

    def run_template(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> str:
        """What a chat template writes."""
        asked = calls.RunTemplate(json.dumps(messages), json.dumps(options))
        return self._ask(asked).decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """End all processes."""
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
        """A folder with the files of this very tokenizer, until this object ends."""
        folder = Path(tempfile.mkdtemp(prefix="jengine-tokenizer-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._hf.save_pretrained(folder)
        return folder


def unpacked(found: bytearray) -> list[int]:
    """Numbers from their bytes."""
    return array("i", bytes(found)).tolist()
