"""Checks one draw of an encoder (hidden states or classification scores) against transformers.

Prompts of several lengths are packed into one step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jengine.api.llm import LLM
from jengine.bench.fidelity.encoders import drawn_encoder
from jengine.bench.fidelity.found import LIMIT, DrawError, beside_float64, distance
from jengine.bench.fidelity.implementations import COMPILED_ONCE, Implementation
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.config import PoolerConfig, PoolingTask
from jengine.pooling_params import PoolingParams

PROMPTS = (1, 40, 17, 33)  # their lengths
LEAST_TOKEN = 5  # behind those that pad


def check_encoder(theirs: Transformers, family: str, number: int, how: Implementation) -> DrawError:
    """Check the draw with this number. Raises JengineError if either side rejects the config."""
    architecture, settings = drawn_encoder(family, number)
    rng = np.random.default_rng(number)
    prompts = [rng.integers(LEAST_TOKEN, 88, size).tolist() for size in PROMPTS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        theirs.write(folder, architecture, settings, seed=number, dtype=how.dtype, unscaled=False)
        ours = pooled(folder, architecture, prompts, how)
        expected = theirs.pool(folder, architecture, prompts)
        error = distance(ours, expected)
        if error <= LIMIT:
            return DrawError(error, LIMIT)
        return beside_float64(
            ours, expected, theirs.pool(folder, architecture, prompts, dtype="float64")
        )


def pooled(
    folder: Path, architecture: str, prompts: Sequence[list[int]], how: Implementation
) -> list[np.ndarray]:
    """jengine's output."""
    task = task_of(architecture)
    settings = {
        "skip_tokenizer_init": True, "enforce_eager": True, "show_progress": False,
        "max_num_batched_tokens": 128, "max_model_len": 48, "dtype": how.dtype,
        "compilation_config": {"prefill_tokens": [128], **COMPILED_ONCE},
        "pooler_config": PoolerConfig(task=task), **how.settings,
    }  # fmt: skip
    params = PoolingParams(use_activation=False)
    with LLM(folder, **settings) as llm:
        found = llm.encode(list(prompts), params, pooling_task=task, use_tqdm=False)
    return [np.asarray(one.outputs.data) for one in found]


def task_of(architecture: str) -> PoolingTask:
    """The pooling task of a class: per prompt, or per token."""
    if architecture.endswith("ForSequenceClassification"):
        return "classify"
    return "token_classify" if architecture.endswith("Classification") else "token_embed"
