"""Reads and checks the vocabulary of a GGUF file.

In: metadata. Out: `Vocabulary`. Must not know tokenizers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jengine.errors import CheckpointError

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types
ADVICE = "Give tokenizer=FOLDER, that of the model the file was made of."
# Role -> its name in GGUF ("seperator" is GGUF's spelling).
ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "mask": "mask",
}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens with scores and types, and metadata of the vocabulary."""

    where: str
    model: str
    splitting: str | None
    architecture: str
    tokens: list[str]
    scores: np.ndarray
    types: np.ndarray
    merges: list[str]
    metadata: Mapping[str, Any]

    def flag(self, name: str, default: bool) -> bool:
        """A boolean setting."""
        found = self.metadata.get(PREFIX + name)
        if found is None:
            return default
        if not isinstance(found, bool | np.bool_):
            raise self.refuse(f"{PREFIX}{name} is {found!r}, expected true or false")
        return bool(found)

    def id_of(self, role: str) -> int | None:
        """Token id of a role such as "bos", or None."""
        key = f"{PREFIX}{ROLES.get(role, role)}_token_id"
        found = self.metadata.get(key)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.refuse(f"{key} is {found!r}, expected the id of a token")
        # Some converters write ids beyond the vocabulary; llama.cpp ignores them too.
        return found if 0 <= found < len(self.tokens) else None

    def role(self, role: str) -> str | None:
        """Token text of a role, or None."""
        found = self.id_of(role)
        return None if found is None else self.tokens[found]

    def with_type(self, *types: int) -> list[str]:
        return [self.tokens[one] for one in np.flatnonzero(np.isin(self.types, types))]

    def refuse(self, why: str) -> CheckpointError:
        """CheckpointError about this vocabulary."""
        return CheckpointError(f"{self.where}: {why}. {ADVICE}")


def read_vocabulary(metadata: Mapping[str, Any], where: str) -> Vocabulary:
    """Read the vocabulary, without trailing unused tokens. Raises CheckpointError."""
    model = metadata.get(f"{PREFIX}model")
    tokens = _texts(metadata, "tokens", where)
    if not isinstance(model, str) or not tokens:
        raise CheckpointError(f"{where}: holds no vocabulary. {ADVICE}")
    types = _numbers(metadata, "token_type", len(tokens), where, NORMAL)
    while tokens and types[len(tokens) - 1] == UNUSED:
        tokens.pop()
    if len(set(tokens)) < len(tokens):
        [(twice, _)] = Counter(tokens).most_common(1)
        raise CheckpointError(f"{where}: two tokens are {twice!r}. {ADVICE}")
    splitting = metadata.get(f"{PREFIX}pre")
    return Vocabulary(
        where,
        model,
        None if splitting is None else str(splitting),
        str(metadata.get("general.architecture")),
        tokens,
        _numbers(metadata, "scores", len(tokens), where, 0.0)[: len(tokens)],
        types[: len(tokens)],
        _texts(metadata, "merges", where),
        metadata,
    )


def _texts(metadata: Mapping[str, Any], name: str, where: str) -> list[str]:
    given = metadata.get(PREFIX + name)
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise CheckpointError(f"{where}: {PREFIX}{name} is no list of texts. {ADVICE}")
    return list(given)


def _numbers(
    metadata: Mapping[str, Any], name: str, count: int, where: str, default: float
) -> np.ndarray:
    given = metadata.get(PREFIX + name)
    if given is None:
        return np.full(count, default)
    if not isinstance(given, np.ndarray) or len(given) < count:
        raise CheckpointError(f"{where}: {PREFIX}{name} does not hold {count} numbers. {ADVICE}")
    return given
