"""jengine: a JAX inference engine for large language models.

The public names, loaded when they are first used: importing jengine alone does not import jax.
vLLM's other names and import paths are in vllm_names.py.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jengine.vllm_names import VllmPaths, missing_name

if TYPE_CHECKING:  # for type checkers, which cannot follow __getattr__
    from jengine.api.async_llm import AsyncLLM
    from jengine.api.generate import clear, generate
    from jengine.api.llm import LLM
    from jengine.assembly.args import EngineArgs
    from jengine.logprobs import Logprob
    from jengine.models.registry import register_model
    from jengine.outputs import CompletionOutput, RequestOutput
    from jengine.research.compare import compare
    from jengine.research.comparison import Comparison
    from jengine.sampling_params import RequestOutputKind, SamplingParams
    from jengine.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"

_HOMES = {
    "AsyncLLM": "jengine.api.async_llm",
    "Comparison": "jengine.research.comparison",
    "CompletionOutput": "jengine.outputs",
    "EngineArgs": "jengine.assembly.args",
    "LLM": "jengine.api.llm",
    "Logprob": "jengine.logprobs",
    "PromptType": "jengine.prompts",
    "RequestOutput": "jengine.outputs",
    "RequestOutputKind": "jengine.sampling_params",
    "SamplingParams": "jengine.sampling_params",
    "StructuredOutputsParams": "jengine.structured_outputs",
    "TextPrompt": "jengine.prompts",
    "TokensPrompt": "jengine.prompts",
    "compare": "jengine.research.compare",
    "clear": "jengine.api.generate",
    "generate": "jengine.api.generate",
    "register_model": "jengine.models.registry",
}
_ALIASES = {"AsyncLLMEngine": "AsyncLLM", "AsyncEngineArgs": "EngineArgs"}
__all__ = [*_HOMES, *_ALIASES, "__version__"]  # noqa: PLE0604 - resolved in __getattr__


def __getattr__(name: str) -> Any:
    name = _ALIASES.get(name, name)
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise missing_name("jengine", name)


def __dir__() -> list[str]:
    return sorted(__all__)


if VllmPaths not in sys.meta_path:
    sys.meta_path.append(VllmPaths)
