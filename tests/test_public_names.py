"""Every public name resolves, later features say so, and importing jengine is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import jengine
from jengine.errors import UnsupportedFeature

ROOT = Path(__file__).parent.parent
EXPECTED = {
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "Comparison",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "ExplicitEncoderDecoderPrompt",
    "LLM",
    "Logprob",
    "PoolerConfig",
    "PoolingParams",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "clear",
    "compare",
    "generate",
    "register_model",
}


def test_the_promised_names_are_public() -> None:
    assert set(jengine.__all__) >= EXPECTED
    assert dir(jengine) == sorted(jengine.__all__)


@pytest.mark.parametrize("name", sorted(jengine.__all__))
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(jengine, name) is not None
    assert getattr(jengine, name) is getattr(jengine, name)


def test_aliases_are_the_same_thing() -> None:
    assert jengine.AsyncLLMEngine is jengine.AsyncLLM
    assert jengine.AsyncEngineArgs is jengine.EngineArgs


def test_names_of_vllm_alone_can_be_imported_conditionally() -> None:
    with pytest.raises(ImportError, match="use EngineArgs"):
        from jengine import VllmConfig  # noqa: F401  # pyrefly: ignore
    with pytest.raises(UnsupportedFeature, match=r"jengine\.VllmConfig: use EngineArgs"):
        _ = jengine.VllmConfig  # pyrefly: ignore


def test_unknown_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        _ = jengine.LLMs


def test_importing_jengine_is_cheap() -> None:
    code = (
        "import sys, jengine; heavy = ('jax', 'jaxlib', 'flax', 'transformers', 'tokenizers', "
        "'torch', 'numpy'); print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_star_import_brings_every_name() -> None:
    names: dict[str, object] = {}
    exec("from jengine import *", names)
    assert set(jengine.__all__) <= set(names)
