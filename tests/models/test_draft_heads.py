"""EAGLE-3 and MTP heads compute what their published definitions say, written here in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.models.context import whole_sequences
from jengine.models.draft_heads.eagle3_file import OFFSETS, PLACES, read_eagle3
from jengine.models.draft_heads.heads import EMBED, HEAD, DraftHeads
from jengine.models.draft_heads.mtp import COPIES, read_mtp
from jengine.models.registry import model_config, tensor_names
from jengine.weights.abstract import with_values
from jengine.weights.draft_places import DraftPlaces
from jengine.weights.dummy import dummy_model
from jengine.weights.folder import open_checkpoint
from jengine.weights.safetensors_file import write_file
from jengine.weights.safetensors_io import stream
from tests.models.tiny_models import FAMILIES, tiny_settings

VOCAB, HIDDEN, HEADS, DIM, LENGTH, EPS = 97, 32, 4, 8, 7, 1e-5
TOKENS = np.array([3, 5, 8, 13, 21, 34, 55])
KNOWN = np.arange(0, VOCAB, 2)  # tokens that a head with a smaller vocabulary knows
LAYERS = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
Numbers = dict[str, np.ndarray]


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * weight


def turned(x: np.ndarray) -> np.ndarray:
    """Queries or keys [length, heads, dim], rotated by position."""
    angles = np.arange(LENGTH)[:, None] / 10000.0 ** (np.arange(DIM // 2) * 2 / DIM)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attended(x: np.ndarray, of: Numbers, prefix: str) -> np.ndarray:
    """Causal attention with two queries for each key."""
    q, k, v = (
        (x @ of[f"{prefix}.self_attn.{part}_proj.weight"].T).reshape(LENGTH, -1, DIM)
        for part in "qkv"
    )
    q, k, v = turned(q), np.repeat(turned(k), 2, axis=1), np.repeat(v, 2, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(DIM)
    scores = np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
    return mixed.reshape(LENGTH, -1) @ of[f"{prefix}.self_attn.o_proj.weight"].T


def fed(x: np.ndarray, of: Numbers, prefix: str) -> np.ndarray:
    gate, up = (x @ of[f"{prefix}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return (gate / (1 + np.exp(-gate)) * up) @ of[f"{prefix}.mlp.down_proj.weight"].T


def eagle3_by_hand(
    of: Numbers, hf: dict[str, Any], points: list[np.ndarray], prefix: str
) -> tuple[np.ndarray, np.ndarray]:
    """What the next draft reads, and the logits."""
    if hf.get("fc_norm"):
        points = [normed(x, of[f"fc_norm.{i}.weight"]) for i, x in enumerate(points)]
    read = np.concatenate(points, axis=-1)
    if hf.get("norm_before_fc"):
        read = normed(read, of["input_norm.weight"])
    hidden = read @ of["fc.weight"].T
    own = normed(hidden, of[f"{prefix}.hidden_norm.weight"])
    residual = own if hf.get("norm_before_residual") else hidden
    embeddings = normed(of[EMBED][TOKENS], of[f"{prefix}.input_layernorm.weight"])
    x = residual + attended(np.concatenate([embeddings, own], axis=-1), of, prefix)
    x = x + fed(normed(x, of[f"{prefix}.post_attention_layernorm.weight"]), of, prefix)
    last = normed(x, of["norm.weight"])
    return last if hf.get("norm_output") else x, last @ of[HEAD].T


def written(folder: Path, heads: DraftHeads, prefix: tuple[str, str] = ("", "")) -> Numbers:
    """Random tensors for the heads, written to a file; some names may have another beginning."""
    rng = np.random.default_rng(3)
    found: Numbers = {}
    for name, shape in {p.name: p.shape for ps in heads.pieces.values() for p in ps}.items():
        array = (len(shape) == 1) + rng.normal(0, 0.3, shape).astype(np.float32)
        found[name.replace(*prefix) if prefix[0] else name] = array
    if found.pop(PLACES, None) is not None:
        found[OFFSETS] = KNOWN - np.arange(len(KNOWN))
    declared = [(name, array.dtype, array.shape) for name, array in found.items()]
    write_file(folder / "model.safetensors", declared, iter(found.values()))
    return found


@pytest.mark.parametrize(
    ("changed", "prefix"),
    [
        ({}, "midlayer"),
        ({"norm_before_residual": True, "norm_before_fc": True}, "midlayer"),
        ({"fc_norm": True, "norm_output": True, "draft_vocab_size": len(KNOWN)}, "layers.0"),
    ],
)
def test_eagle3(tmp_path: Path, changed: dict[str, Any], prefix: str) -> None:
    config = model_config({**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]})
    layer = {**tiny_settings("llama", num_hidden_layers=1), "rms_norm_eps": EPS}
    hf = {**layer, **LAYERS, **changed}
    midlayer = ("midlayer", prefix)
    of = written(tmp_path, read_eagle3(hf, config, (EMBED, HEAD)), midlayer)
    if prefix == "layers.0":  # as the speculators library writes it
        hf = {"transformer_layer_config": layer, "norm_before_residual": False, **LAYERS, **changed}
    tensors: dict[str, Any] = dict(open_checkpoint(tmp_path))
    heads = read_eagle3(hf, config, tensors)
    if OFFSETS in tensors:
        tensors[PLACES] = DraftPlaces(PLACES, tensors.pop(OFFSETS), VOCAB)
    head: Any = with_values(heads.model, dict(stream(tensors, heads.model, heads.pieces)))
    assert heads.points == ("embed", "layers.0.output", "layers.1.output")

    rng = np.random.default_rng(5)
    points = [rng.normal(size=(1, LENGTH, HIDDEN)).astype(np.float32) for _ in range(3)]

    @jax.jit
    def run(tokens: jax.Array, kept: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        states = head.states(jnp.zeros(()), kept)
        found = head(tokens, states, whole_sequences((1, LENGTH)), None)[0]
        return found, head.logits(found, jnp.zeros(LENGTH, jnp.int32), None)

    kept = dict(zip(heads.points, points, strict=True))
    found, logits = map(np.asarray, run(TOKENS[None], kept))
    expected, scores = eagle3_by_hand(of, hf, [one[0] for one in points], prefix)
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
    if "draft_vocab_size" in changed:
        assert np.isneginf(np.delete(logits, KNOWN, axis=1)).all()
        logits = logits[:, KNOWN]
    np.testing.assert_allclose(logits, scores, rtol=2e-4, atol=2e-4)


# What tensors are called, with whether a norm's weight is what is added to one.
GLM = ("eh_proj", "enorm", "hnorm", "shared_head.norm"), 0.0
QWEN = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), 1.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "of_family"), [("glm4_moe", GLM), ("qwen3_next", QWEN), ("qwen3_5", QWEN)]
)
def test_mtp(tmp_path: Path, family: str, of_family: tuple[tuple[str, ...], float]) -> None:
    """Embedding before hidden state, each normalized, in some families none at the first position;
    and the norm that the next draft reads too. The layer between is the model's own kind."""
    architecture = {"architectures": [FAMILIES[family]], "num_nextn_predict_layers": 1}
    hf = {**tiny_settings(family), **architecture, "mtp_num_hidden_layers": 1}
    hf["rms_norm_eps"] = EPS
    (matrix, *norms), added = of_family
    config = model_config(hf)
    of = written(tmp_path, read_mtp(hf, config, tensor_names(config), COPIES))
    heads = read_mtp(hf, config, tensor_names(config), of)
    tensors = open_checkpoint(tmp_path)
    head: Any = with_values(heads.model, dict(stream(tensors, heads.model, heads.pieces)))
    hidden = np.random.default_rng(5).normal(size=(LENGTH, HIDDEN)).astype(np.float32)

    weights = [added + of[f"{name}.weight"] for name in norms]
    embeddings = of[EMBED][TOKENS]
    if family == "glm4_moe":
        embeddings = np.where(np.arange(LENGTH)[:, None] == 0, 0.0, embeddings)
    both = [normed(embeddings, weights[0]), normed(hidden, weights[1])]
    x = np.concatenate(both, axis=-1) @ of[f"{matrix}.weight"].T
    x = head.layers[0](jnp.asarray(x[None], jnp.float32), whole_sequences((1, LENGTH)))[0]
    expected = normed(np.asarray(x), weights[2])

    target = dummy_model(config)
    context = whole_sequences((1, LENGTH))
    found = head(jnp.asarray(TOKENS[None]), jnp.asarray(hidden[None]), context, target)[0]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
    logits = head.logits(found, jnp.zeros(LENGTH, jnp.int32), target)
    np.testing.assert_allclose(logits, expected @ of[COPIES[1]].T, rtol=2e-4, atol=2e-4)


def test_offsets_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    offsets = np.array([0, 0, 95], np.int64)
    write_file(tmp_path / "model.safetensors", [(OFFSETS, offsets.dtype, (3,))], iter([offsets]))
    stored = open_checkpoint(tmp_path)[OFFSETS]
    assert DraftPlaces(PLACES, stored, 98).read()[[0, 1, 97]].tolist() == [0, 1, 2]
    with pytest.raises(CheckpointError, match="tokens from 0 to 97, expected tokens below 97"):
        DraftPlaces(PLACES, stored, 97).read()
