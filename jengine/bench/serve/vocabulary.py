"""Words of exactly one token each, so that prompts have exact token counts.

In: a model folder's tokenizer.json, or nothing. Out: text of a given number of tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from jengine.errors import ConfigError
from jengine.weights.resolve import resolve_model

# Without a tokenizer: common words, which most vocabularies have whole.
COMMON = """
the of and to in is you that it he was for on are as with his they at be this have from or one had
by word but not what all were we when your can said there use an each which she do how their if will
up other about out many then them these so some her would make like him into time has look two more
write go see number no way could people my than first water been call who oil its now find long down
day did get come made may part
"""
# A vocabulary of fewer words would make prompts of few different tokens.
FEWEST = 50
WORD = re.compile(r" [A-Za-z]{2,}")


@dataclass(frozen=True)
class WordList:
    """Words with a leading space. `exact`: each is one token of the model's tokenizer."""

    words: list[str]
    exact: bool
    name: str | None = None

    def text(self, rng: np.random.Generator, count: int) -> str:
        """This many random words."""
        return "".join(self.words[i] for i in rng.integers(0, len(self.words), count))


def vocabulary_of(given: str | None, root: str) -> WordList:
    """Words of the given tokenizer, else of the server's model if it is a local folder, else common
    English words."""
    for name in (given, root):
        if not name:
            continue
        file = tokenizer_file(name)
        if file is not None:
            words = single_token_words(Tokenizer.from_file(str(file)))
            if len(words) >= FEWEST:
                return WordList(words, exact=True, name=name)
        if name == given:
            raise ConfigError(
                f"--tokenizer {given!r}: expected a folder with a tokenizer.json that has words."
            )
    return WordList([" " + word for word in COMMON.split()], exact=False)


def tokenizer_file(name: str) -> Path | None:
    """The tokenizer.json of a model folder, or of the bundled model."""
    path = Path(name)
    if path.is_file() and path.name == "tokenizer.json":
        return path
    folder = resolve_model(name) if name == "demo" or path.is_dir() else path
    file = folder / "tokenizer.json"
    return file if file.is_file() else None


def single_token_words(tokenizer: Tokenizer) -> list[str]:
    """Words that are one token each, also when concatenated."""
    found = []
    for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
        word = token.replace("Ġ", " ").replace("▁", " ")
        if WORD.fullmatch(word):
            found.append((number, word))
    words = [word for _, word in sorted(found)]
    encoded = [tokenizer.encode(word, add_special_tokens=False) for word in words]
    return [word for word, one in zip(words, encoded, strict=True) if len(one.ids) == 1]
