"""jengine: a JAX inference engine for large language models.

Public names are imported at first use, so importing jengine alone does not import jax. vLLM's other
names and import paths are in vllm_names.py.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jengine.full_collections import put_off
from jengine.vllm_names import VllmPaths, missing_name

if TYPE_CHECKING:  # for type checkers, which cannot follow __getattr__
    from jengine.adapters import LoRARequest
    from jengine.api.async_llm import AsyncLLM
    from jengine.api.generate import clear, generate
    from jengine.api.interventions import Patch, Steer
    from jengine.api.llm import LLM
    from jengine.api.llm_engine import LLMEngine
    from jengine.api.models import from_config, from_hf, load_model, save_model
    from jengine.api.patch_grid import PatchGrid
    from jengine.api.picture_batch import PictureBatch, picture_batch
    from jengine.assembly.settings.args import EngineArgs
    from jengine.beam_search import BeamSearchParams
    from jengine.config import PoolerConfig
    from jengine.logits_processor import (
        AdapterLogitsProcessor,
        BatchUpdate,
        LogitsProcessor,
        MoveDirectionality,
        RequestLogitsProcessor,
        process_dict_updates,
    )
    from jengine.logprobs import Logprob
    from jengine.models.registry import register_model
    from jengine.outputs import CompletionOutput, RequestOutput
    from jengine.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from jengine.pooling_params import PoolingParams
    from jengine.research.compare import compare
    from jengine.research.comparison import Comparison
    from jengine.sampling_params import RequestOutputKind, SamplingParams
    from jengine.structured_outputs import StructuredOutputsParams
    from jengine.weights.map_to import MapTo

__version__ = "0.2.0"

_HOMES = {
    "AdapterLogitsProcessor": "jengine.logits_processor",
    "AsyncLLM": "jengine.api.async_llm",
    "BatchUpdate": "jengine.logits_processor",
    "BeamSearchParams": "jengine.beam_search",
    "Comparison": "jengine.research.comparison",
    "ClassificationOutput": "jengine.pooling_outputs",
    "ClassificationRequestOutput": "jengine.pooling_outputs",
    "CompletionOutput": "jengine.outputs",
    "EmbeddingOutput": "jengine.pooling_outputs",
    "EmbeddingRequestOutput": "jengine.pooling_outputs",
    "EmbedsPrompt": "jengine.prompts",
    "EngineArgs": "jengine.assembly.settings.args",
    "ExplicitEncoderDecoderPrompt": "jengine.prompts",
    "LLM": "jengine.api.llm",
    "LLMEngine": "jengine.api.llm_engine",
    "LoRARequest": "jengine.adapters",
    "LogitsProcessor": "jengine.logits_processor",
    "Logprob": "jengine.logprobs",
    "MapTo": "jengine.weights.map_to",
    "MoveDirectionality": "jengine.logits_processor",
    "Patch": "jengine.api.interventions",
    "PatchGrid": "jengine.api.patch_grid",
    "PictureBatch": "jengine.api.picture_batch",
    "PoolerConfig": "jengine.config",
    "PoolingOutput": "jengine.pooling_outputs",
    "PoolingParams": "jengine.pooling_params",
    "PoolingRequestOutput": "jengine.pooling_outputs",
    "PromptType": "jengine.prompts",
    "RequestLogitsProcessor": "jengine.logits_processor",
    "RequestOutput": "jengine.outputs",
    "RequestOutputKind": "jengine.sampling_params",
    "SamplingParams": "jengine.sampling_params",
    "ScoringOutput": "jengine.pooling_outputs",
    "ScoringRequestOutput": "jengine.pooling_outputs",
    "Steer": "jengine.api.interventions",
    "StructuredOutputsParams": "jengine.structured_outputs",
    "TextPrompt": "jengine.prompts",
    "TokensPrompt": "jengine.prompts",
    "compare": "jengine.research.compare",
    "clear": "jengine.api.generate",
    "from_config": "jengine.api.models",
    "from_hf": "jengine.api.models",
    "generate": "jengine.api.generate",
    "load_model": "jengine.api.models",
    "picture_batch": "jengine.api.picture_batch",
    "process_dict_updates": "jengine.logits_processor",
    "register_model": "jengine.models.registry",
    "save_model": "jengine.api.models",
}
_ALIASES = {"AsyncLLMEngine": "AsyncLLM", "AsyncEngineArgs": "EngineArgs"}
__all__ = [*_HOMES, *_ALIASES, "__version__"]  # noqa: PLE0604 - resolved in __getattr__


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name in _HOMES:
        with put_off():
            home = import_module(_HOMES[name])
        return getattr(home, name)
    raise missing_name("jengine", name)


def __dir__() -> list[str]:
    return sorted(__all__)


if VllmPaths not in sys.meta_path:
    sys.meta_path.append(VllmPaths)
