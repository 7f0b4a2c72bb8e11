"""Lets tokenizers be loaded without importing torch, which takes longer than the rest of it.

transformers has AutoTokenizer import, for the classes of configs, one module that imports torch
where it is installed, and has it build the model's config, whose dtype is an object of torch.
Neither is used by a tokenizer. `is_torch_available` and later imports of torch stay as they are.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

IMPORTS_TORCH = "transformers.modeling_rope_utils"
# What AutoTokenizer reads of a config.json where the tokenizer's own config names a class.
READ = ("model_type", "model_name", "tokenizer_class")


class _Later(ModuleType):
    """Stands for torch in that module until something of it is used."""

    def __getattr__(self, name: str) -> Any:
        _remove(self)
        torch = importlib.import_module("torch")
        vars(sys.modules[IMPORTS_TORCH])["torch"] = torch
        return getattr(torch, name)


def defer_torch() -> None:
    """Import that module, and torch when it is used, unless either is imported already."""
    importlib.import_module("transformers.utils")  # nothing else sees what stands for torch
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
    """The part of a model's config that AutoTokenizer reads. None where it may read more."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    kind = config.get("model_type")
    known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if not known or not tokenizer_config.get("tokenizer_class"):
        return None
    read: dict[str, Any] = {key: config[key] for key in READ if key in config}
    read["_name_or_path"] = folder
    return PreTrainedConfig(**read)
