"""What jengine needs of Tunix, as documented: for tests where Tunix is not installed.

tests/integrations/test_with_tunix.py compares these shapes with the published package.
"""

from __future__ import annotations

import abc
import dataclasses
import sys
import types
from typing import Any

import numpy as np
import pytest

MODULE = "tunix.rl.rollout.base_rollout"


@dataclasses.dataclass
class RolloutOutput:
    text: list[str]
    logits: Any
    tokens: list[np.ndarray]
    left_padded_prompt_tokens: np.ndarray
    logprobs: list[np.ndarray] | None


@dataclasses.dataclass
class RolloutConfig:
    max_tokens_to_generate: int = 64
    temperature: float = 0.9
    top_p: float | None = 1.0
    top_k: int | None = None
    seed: Any = None
    max_prompt_length: int = 64
    kv_cache_size: int = 1024
    data_type: Any = None
    eos_tokens: list[int] | None = None
    rollout_mapping_config: Any = None
    tensor_parallel_size: int = -1
    data_parallel_size: int = -1
    expert_parallel_size: int = 1
    return_logprobs: bool = False


class BaseRollout(abc.ABC):
    @abc.abstractmethod
    def __init__(self, **kwargs: Any) -> None: ...

    @abc.abstractmethod
    def generate(self, prompts: list[str], rollout_config: Any, **kwargs: Any) -> Any: ...

    @abc.abstractmethod
    def get_per_token_logps(self, prompt_tokens: Any, completion_tokens: Any) -> Any: ...

    @abc.abstractmethod
    def update_params(self, params: Any, filter_types: Any = None) -> None: ...

    @abc.abstractmethod
    def pad_id(self) -> int: ...

    @abc.abstractmethod
    def eos_id(self) -> int: ...

    @abc.abstractmethod
    def model(self) -> Any: ...


def install(patch: pytest.MonkeyPatch) -> None:
    """Let `import tunix...` find these, until the patch is undone."""
    names = MODULE.split(".")
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        module: Any = types.ModuleType(name)
        module.__path__ = []
        patch.setitem(sys.modules, name, module)
        if depth > 1:
            setattr(sys.modules[".".join(names[: depth - 1])], names[depth - 1], module)
    base: Any = sys.modules[MODULE]
    for kind in (RolloutOutput, RolloutConfig, BaseRollout):
        setattr(base, kind.__name__, kind)
    patch.delitem(sys.modules, "jengine.integrations.tunix", raising=False)
