"""Bundles without torch: the values of a dense forward pass of our own model, with some noise.

They stand for a reference wherever the comparison itself is tested; the numbers of torch are
compared in test_torch_reference.py and, end to end, in test_against_torch.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

from jengine.models.context import whole_sequences
from jengine.models.decoder import Decoder
from jengine.weights.safetensors_io import load_model

NOISE = 1e-6
PROMPTS = [[5, 17, 3, 88, 41, 9, 60, 33], np.random.default_rng(1).integers(3, 97, 45).tolist()]
NEW_TOKENS = 4


def forward(model: Decoder, ids: Sequence[int]) -> dict[str, np.ndarray]:
    """Values at every tap point, and logits, of one dense pass."""

    def run(tokens: Any) -> dict[str, Any]:
        seen = {}

        def tap(name: str, value: Any) -> Any:
            seen[name] = value[0]
            return value

        hidden = model(tokens, whole_sequences(tokens.shape, tap))
        return {**seen, "logits": model.logits(hidden)[0]}

    found = jax.jit(run)(jnp.asarray([ids]))
    return {name: np.array(value, np.float32) for name, value in found.items()}


def noisy(value: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """The value with relative noise on every number."""
    draws = np.random.default_rng(seed).standard_normal(value.shape)
    return (value * (1 + noise * draws)).astype(np.float32)


def run_arrays(
    model: Decoder, ids: Sequence[int], noise: float, keep: int | None
) -> dict[str, np.ndarray]:
    """The tensors of one prompt of one run."""
    values = {name: noisy(one, noise, 7) for name, one in forward(model, ids).items()}
    logits = values["logits"].astype(np.float64)
    values["normalizer"] = np.log(np.exp(logits).sum(-1)).astype(np.float32)
    values["given"] = logits[np.arange(len(ids) - 1), ids[1:]].astype(np.float32)
    values["top"] = np.argsort(-logits, -1)[:, :20].astype(np.int32)
    if keep is not None:
        values["logits"] = np.take_along_axis(values["logits"], columns(logits, keep), -1)
    return values


def columns(logits: np.ndarray, keep: int) -> np.ndarray:
    """The likeliest tokens of every position."""
    return np.argsort(-logits, -1, kind="stable")[:, :keep]


def greedy(model: Decoder, ids: Sequence[int], steps: int) -> dict[str, Any]:
    """Greedy decoding, each step from scratch."""
    # Causal attention: the padding after a position does not change it, so one length will do.
    known, made = [*ids, *[0] * steps], {"tokens": [], "ids": [], "logits": []}
    for step in range(steps):
        last = forward(model, known)["logits"][len(ids) + step - 1]
        best = np.argsort(-last)[:20]
        known[len(ids) + step] = int(best[0])
        made["tokens"].append(int(best[0]))
        made["ids"].append(best.tolist())
        made["logits"].append(last[best].tolist())
    return made


def write_bundle(
    folder: Path,
    model_folder: Path,
    *,
    prompts: Sequence[list[int]] = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    keep: int | None = None,
    noise: float = NOISE,
    **changes: Any,
) -> Path:
    """A bundle of a float32 model, with `changes` to its description."""
    model = load_model(model_folder, dtype="float32")
    arrays: dict[str, np.ndarray] = {}
    for number, ids in enumerate(prompts):
        for run, loud in (("truth", 0.0), ("working", noise)):
            values = run_arrays(model, ids, loud, keep if run == "truth" else None)
            if keep is not None and run == "working":
                # Both runs keep the tokens that are likeliest in truth.
                kept = columns(forward(model, ids)["logits"].astype(np.float64), keep)
                values["logits"] = np.take_along_axis(values["logits"], kept, -1)
                arrays[f"{number}.columns"] = kept.astype(np.int32)
            arrays |= {f"{run}.{number}.{name}": value for name, value in values.items()}
    steps = [greedy(model, ids, new_tokens) for ids in prompts]
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
    save_file(arrays, folder / "tensors.safetensors")
    config = model.config
    description = {
        "format": "jengine comparison",
        "version": 1,
        "model": {
            "architecture": config.architecture,
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "num_layers": len(config.layers),
        },
        "dtype": "float32",
        "truth_dtype": "float64",
        "prompts": [list(ids) for ids in prompts],
        "new_tokens": new_tokens,
        "greedy": {"truth": steps, "working": steps},
        "software": {"torch": "none"},
        "sha256": hashlib.sha256((folder / "tensors.safetensors").read_bytes()).hexdigest(),
        **changes,
    }
    (folder / "bundle.json").write_text(json.dumps(description))
    return folder
