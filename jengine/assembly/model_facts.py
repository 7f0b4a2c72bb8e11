"""Facts about a model besides its parameters: config, tokenizer, generation settings. No jax.

In: EngineArgs, and files of the model's folder. Out: EOS and stop tokens, the tokenizer, default
sampling settings. Must not know sizes, caches or requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jengine.assembly.settings.model_args import ModelSettings
from jengine.config import ModelConfig
from jengine.errors import ConfigError, nearest_name
from jengine.grammar.shared_tokenizer import SharedTokenizer
from jengine.text.tokenizer import Tokenizer, load_tokenizer, wrap_tokenizer
from jengine.text.vocabulary.made import made_tokenizer
from jengine.weights.generation_config import (
    GENERATION_KEYS,
    generation_settings,
    read_generation_config,
    read_json,
)
from jengine.weights.gguf.files import open_gguf
from jengine.weights.resolve import is_gguf, resolve_model


@dataclass(frozen=True)
class ModelSource:
    """Facts about a model before its parameters are read."""

    config: ModelConfig
    folder: Path | None  # None: live model
    tokenizer: Tokenizer | None
    generation: Mapping[str, Any]
    told_tokenizer: SharedTokenizer | None = None  # in a core's process

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's EOS, else the model's; ending on it reports no stop reason."""
        own = None if self.tokenizer is None else self.tokenizer.eos_token_id
        return self._in_vocabulary(self.config.eos_token_ids if own is None else (own,))

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Other token ids that end generation, from config and generation config; reported as stop
        reason."""
        ids = {*self.config.eos_token_ids, *self.generation.get("eos_token_id", ())}
        return self._in_vocabulary(ids.difference(self.eos_token_ids))

    def _in_vocabulary(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(i for i in ids if 0 <= i < self.config.vocab_size))


def generation_of(asked: ModelSettings, folder: Path) -> dict[str, object]:
    """The folder's generation config if it is enabled, with overrides."""
    override = generation_override(asked.override_generation_config)
    return {
        **(read_generation_config(folder) if asked.generation_config == "auto" else {}),
        **override,
    }


def generation_override(given: Mapping[str, Any] | None) -> dict[str, object]:
    """Validated entries of override_generation_config."""
    for key in given or {}:
        if key not in GENERATION_KEYS:
            raise ConfigError(
                f"override_generation_config has no key {key!r}. Known: "
                f"{', '.join(GENERATION_KEYS)}.{nearest_name(str(key), GENERATION_KEYS)}"
            )
    return generation_settings(given or {}, "override_generation_config")


def tokenizer_of(asked: ModelSettings, folder: Path | None) -> Tokenizer | None:
    """The given tokenizer, else the folder's."""
    if asked.skip_tokenizer_init:
        return None
    if isinstance(asked.tokenizer, (str, Path)):
        return model_tokenizer(resolve_model(asked.tokenizer))
    if asked.tokenizer is not None:
        return wrap_tokenizer(asked.tokenizer)
    if folder is None:
        raise ConfigError(
            "a live model comes without a tokenizer: give tokenizer=..., or "
            "skip_tokenizer_init=True and token ids as prompts."
        )
    return model_tokenizer(folder)


def image_settings(folder: Path | None) -> dict[str, Any]:
    """The folder's image preprocessing settings."""
    if folder is None or not folder.is_dir():
        return {}
    own, whole = folder / "preprocessor_config.json", folder / "processor_config.json"
    if own.is_file():
        return dict(read_json(own))
    found = read_json(whole).get("image_processor") if whole.is_file() else None
    return dict(found) if isinstance(found, Mapping) else {}


def video_settings(folder: Path | None) -> dict[str, Any]:
    """Video preprocessing settings that differ from `image_settings`."""
    if folder is None or not folder.is_dir():
        return {}
    own, whole = folder / "video_preprocessor_config.json", folder / "processor_config.json"
    if own.is_file():
        return dict(read_json(own))
    found = read_json(whole).get("video_processor") if whole.is_file() else None
    return dict(found) if isinstance(found, Mapping) else {}


def model_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, or of a GGUF file's vocabulary."""
    if is_gguf(folder):
        return made_tokenizer(open_gguf(folder).metadata, str(folder))
    return load_tokenizer(folder)
