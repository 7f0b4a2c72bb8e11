"""A small tokenizer interface over transformers: encode, decode, text of one token.

In: a local folder, or a user's live transformers tokenizer. Out: `Tokenizer`. Never runs code from
a checkpoint nor opens the network. Must not know: requests, streaming, chat messages.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from tokenizers import Tokenizer as Backend

from jengine.confined import errand as errands
from jengine.errors import CheckpointError, ConfigError, RequestError, lfs_advice
from jengine.full_collections import put_off
from jengine.text.confined_tokenizer import ConfinedTokenizer
from jengine.text.torch_later import config_without_dtype, defer_torch
from jengine.text.transformers_names import keep_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Stands for invalid UTF-8.
REPLACEMENT = "\ufffd"


def _is_not_torch_notice(record: logging.LogRecord) -> bool:
    return "PyTorch was not found" not in record.getMessage()


# Characters tokenized in about 20 ms, which other requests may wait for; and how much slower
# tokenizers in Python are.
SHORT, SLOWER = 16 * 1024, 16

# transformers warns at import that torch is missing, as intended here.
logging.getLogger("transformers").addFilter(_is_not_torch_notice)

# transformers makes an empty tokenizer of a folder with only a config, so we check the files.
_VOCABULARY_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
)


@final
class Tokenizer:
    """Wraps a transformers tokenizer, `hf`. `backend` is its Rust tokenizer, None for slow Python
    ones.

    Vocabulary size and added tokens are read once: add tokens before wrapping.
    """

    def __init__(self, hf: PreTrainedTokenizerBase) -> None:
        self.hf = hf
        self.confined: ConfinedTokenizer | None = None  # for clients' long texts, in a server
        self.short = SHORT if hf.is_fast else SHORT // SLOWER
        self._encoding = threading.Lock()
        self.backend: Backend | None = hf.backend_tokenizer if hf.is_fast else None
        self.vocab_size: int = len(hf)  # added tokens included
        added = hf.added_tokens_decoder
        self.added_tokens: dict[int, str] = {
            number: token.content for number, token in added.items()
        }
        self.special_ids: frozenset[int] = frozenset(
            number for number, token in added.items() if token.special
        ).union(() if hf.is_fast else hf.all_special_ids)
        self.special_texts = frozenset(
            text for number, text in self.added_tokens.items() if number in self.special_ids
        )

    @property
    def eos_token_id(self) -> int | None:
        """The tokenizer's EOS; a generation config may list more."""
        number: int | None = self.hf.eos_token_id
        return number

    @property
    def response_template(self) -> dict[str, Any] | None:
        """The model's response template, if any."""
        given = self.hf.init_kwargs.get("response_template")
        # Newer transformers keeps it as an attribute.
        return vars(self.hf).get("response_template", given)

    @property
    def truncation_side(self) -> Literal["left", "right"]:
        return "left" if self.hf.truncation_side == "left" else "right"

    def encode(
        self,
        text: str,
        add_special_tokens: bool = True,
        *,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        side: Literal["left", "right"] | None = None,
    ) -> list[int]:
        """Encode a text. Texts longer than `max_chars` are refused before any work; ids beyond
        `max_tokens` are truncated on `side` (default: the tokenizer's), special tokens excepted."""
        _check_text(text, max_chars)
        confined = self.confined_for(len(text))
        if confined is not None:
            return confined.encode(text, add_special_tokens, max_tokens, side)
        options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "verbose": False}
        if max_tokens is not None:
            options.update(truncation=True, max_length=max_tokens)
        # transformers mutates the Rust tokenizer's options before encoding, which fails while
        # another thread encodes.
        with self._encoding:
            own = self.hf.truncation_side
            try:
                self.hf.truncation_side = side or own
                encoded = self.hf(text, **options)
            finally:
                self.hf.truncation_side = own
        return list(encoded["input_ids"])

    def encode_plain(self, text: str) -> list[int]:
        """Encode with special tokens in the text treated as plain text."""
        confined = self.confined_for(len(text))
        if confined is not None:
            return confined.encode_plain(text)
        with self._encoding:
            found = self.hf(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if len(text) < 2 or self.added_tokens.keys().isdisjoint(found):
            return list(found)
        return self.encode_plain(text[:1]) + self.encode_plain(text[1:])

    def encode_pair(
        self, first: str, second: str, max_tokens: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Encode a text pair. Returns ids and token types (empty if the tokenizer has none),
        truncated to `max_tokens`."""
        _check_text(first, None)
        _check_text(second, None)
        confined = self.confined_for(len(first) + len(second))
        if confined is not None:
            return confined.encode_pair(first, second, max_tokens)
        cut = {} if max_tokens is None else {"truncation": True, "max_length": max_tokens}
        with self._encoding:
            found: Any = self.hf(first, second, **cut)
        return list(found["input_ids"]), list(found.get("token_type_ids") or ())

    def beginning(self, text: str, tokens: int) -> str:
        """Longest prefix of the text with at most `tokens` tokens."""
        _check_text(text, None)
        confined = self.confined_for(len(text))
        if confined is not None:
            return confined.beginning(text, tokens)
        while text:
            with self._encoding:
                found: Any = self.hf(text, add_special_tokens=False, return_offsets_mapping=True)
            if len(found["input_ids"]) <= tokens:
                break
            places = found["offset_mapping"]
            end = min(places[tokens - 1][1], places[tokens][0])
            text = text[: min(end, len(text) - 1)]
        return text

    def confined_for(self, size: int) -> ConfinedTokenizer | None:
        """The process pool for a text of this size, or None to work here: pools are for long texts
        or batches on a server. Raises GivenUp if the request was abandoned."""
        errand = errands.current.get()
        if errand is not None:
            errand.check()
        is_long = size > self.short or (errand is not None and errand.confined)
        return self.confined if is_long else None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode without transformers' clean-up, so that it equals streamed text."""
        if self.backend is not None:
            return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        text = self.hf.decode(
            list(token_ids),
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        assert isinstance(text, str), "one list of ids decodes to one text"
        return text

    def token_text(self, token_id: int, context: Sequence[int] = ()) -> str:
        """Text a token adds after `context` (its last three tokens suffice). A token that leaves a
        character incomplete gives "", the one that completes it the whole character."""
        # One token of context reveals a leading space; up to three may start the character.
        for length in range(min(1, len(context)), min(3, len(context)) + 1):
            before = list(context[len(context) - length :])
            text = self.decode([*before, token_id], skip_special_tokens=False)
            if not text.endswith(REPLACEMENT):
                return _added_text(self.decode(before, skip_special_tokens=False), text)
        return ""


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _VOCABULARY_FILES)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load a local model folder's tokenizer. Raises CheckpointError."""
    folder = Path(path)
    _check_folder(folder)
    with put_off():
        keep_names()
        defer_torch()
        # Slow to import, and engines without a tokenizer do not need it.
        from transformers import AutoTokenizer

    try:
        # AutoTokenizer is typed as if it could return None; without a tokenizer it raises.
        hf: Any = AutoTokenizer.from_pretrained(
            str(folder), config=_stated_config(folder), trust_remote_code=False,
            local_files_only=True, mistral_format=False,
        )  # fmt: skip
    # Rust errors are plain Exceptions, and transformers raises a dozen kinds; all mean the same
    # here.
    except Exception as error:
        advice = "".join(lfs_advice(folder / name) for name in _VOCABULARY_FILES) or (
            " Check its tokenizer.json and tokenizer_config.json, or pass a live tokenizer object."
        )
        raise CheckpointError(
            f"The tokenizer in {folder} cannot be loaded: {error}.{advice}"
        ) from error
    return Tokenizer(hf)


def _stated_config(folder: Path) -> Any:
    configs = (_read_config(folder / name) for name in ("config.json", "tokenizer_config.json"))
    return config_without_dtype(str(folder), *configs)


def wrap_tokenizer(tokenizer: Tokenizer | PreTrainedTokenizerBase) -> Tokenizer:
    """Wrap a user's live transformers tokenizer; a Tokenizer is returned as is."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    from transformers import PreTrainedTokenizerBase

    # mistral-common's class has the type, but not the interface.
    if isinstance(tokenizer, PreTrainedTokenizerBase) and isinstance(
        tokenizer.added_tokens_decoder, dict
    ):
        return Tokenizer(tokenizer)
    raise ConfigError(
        f"tokenizer is a {type(tokenizer).__module__}.{type(tokenizer).__qualname__}, expected a "
        "transformers tokenizer. Wrap a bare tokenizers.Tokenizer with "
        "transformers.PreTrainedTokenizerFast(tokenizer_object=...)."
    )


def _check_text(text: str, max_chars: int | None) -> None:
    if not isinstance(text, str):
        raise RequestError(f"The prompt is a {type(text).__name__}, expected a string.")
    if max_chars is not None and len(text) > max_chars:
        raise RequestError(
            f"The prompt has {len(text)} characters, at most {max_chars} are allowed. Shorten it."
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"The prompt has half of a surrogate pair at character {error.start}, which is not "
            "text. Send the whole character or replace it."
        ) from error


def _added_text(before: str, text: str) -> str:
    """Suffix of `text` not in `before`, allowing for an incomplete end of `before`."""
    if text.startswith(before):
        return text[len(before) :]
    return text.removeprefix(before.rstrip(REPLACEMENT))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a local folder. Pass the folder of a model.")
    if not has_tokenizer(folder):
        raise CheckpointError(
            f"{folder} has no tokenizer: expected one of {', '.join(_VOCABULARY_FILES)}. "
            "Copy the tokenizer files there, or pass a live tokenizer object."
        )
    _check_regular(folder)
    _read_config(folder / "config.json")  # transformers would not name the file in its error
    if "auto_map" in _read_config(folder / "tokenizer_config.json"):
        raise CheckpointError(
            f"The tokenizer in {folder} needs Python code from the folder (auto_map in "
            "tokenizer_config.json), and code from a checkpoint is never run. Remove auto_map if "
            "tokenizer.json is enough, or load the tokenizer yourself and pass the object."
        )


def _check_regular(folder: Path) -> None:
    """Refuse special files: reading a FIFO would block."""
    for entry in folder.iterdir():
        if entry.exists() and not (entry.is_file() or entry.is_dir()):
            raise CheckpointError(
                f"{entry} is neither a file nor a folder. A model's folder holds files alone: "
                "remove it."
            )


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read as JSON: {error}.{lfs_advice(path)}"
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} holds a {type(config).__name__}, expected a JSON object.")
    return config
