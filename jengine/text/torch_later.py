"""Loads tokenizers without importing torch, which takes longer than everything else.

AutoTokenizer imports an installed torch by a module that it needs for config classes, and by
building the model's config, whose dtype is a torch object. Tokenizers use neither.
`is_torch_available` and later imports of torch are unaffected.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

IMPORTS_TORCH = "transformers.modeling_rope_utils"
# Keys that AutoTokenizer reads of config.json if the tokenizer's own config names a class.
READ = ("model_type", "model_name", "tokenizer_class")


class _Later(ModuleType):
    """Stands for torch in that module until an attribute is used."""

    def __getattr__(self, name: str) -> Any:
        _remove(self)
        torch = importlib.import_module("torch")
        vars(sys.modules[IMPORTS_TORCH])["torch"] = torch
        return getattr(torch, name)


def defer_torch() -> None:
    """Import that module with a lazy torch, unless either is imported already."""
    importlib.import_module("transformers.utils")  # must not see the stand-in for torch
    spec = None if "torch" in sys.modules else importlib.util.find_spec("torch")
    if IMPORTS_TORCH in sys.modules or spec is None:
        return
    later = _Later("torch")
    later.__spec__ = spec
    sys.modules["torch"] = later
    try:
        importlib.import_module(IMPORTS_TORCH)
    finally:
        _remove(later)


def _remove(later: _Later) -> None:
    if sys.modules.get("torch") is later:
        del sys.modules["torch"]


def config_without_dtype(
    folder: str, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]
) -> Any:
    """The part of a model's config that AutoTokenizer reads; None if it may read more."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    kind = config.get("model_type")
    known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if not known or not tokenizer_config.get("tokenizer_class"):
        return None
    read: dict[str, Any] = {key: config[key] for key in READ if key in config}
    read["_name_or_path"] = folder
    return PreTrainedConfig(**read)
