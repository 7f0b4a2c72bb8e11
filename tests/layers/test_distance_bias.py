"""Buckets of distances as transformers has them, and biases where no cache is."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jengine.config import AttentionConfig, DistanceBiasConfig
from jengine.layers.attention import AttentionInputs, dense_attention
from jengine.layers.distance_bias import biases_by_distance, distance_buckets
from jengine.layers.segment_attention import QUERIES_AT_ONCE, segment_attention
from tests.compiled import compiled

CONFIGS = [(32, 128), (8, 20), (4, 3), (64, 800), (32, 256), (16, 100)]


@pytest.mark.slow
@pytest.mark.parametrize(("buckets", "most"), CONFIGS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_buckets_are_those_of_transformers(buckets: int, most: int, bidirectional: bool) -> None:
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    torch = pytest.importorskip("torch")
    behind = np.arange(-most, most + 1) if bidirectional else -np.arange(most + 1)
    find = modeling.T5Attention._relative_position_bucket
    expected = find(torch.tensor(behind), bidirectional, buckets, most).numpy()
    config = DistanceBiasConfig(buckets, most)
    found = distance_buckets(config, bidirectional=bidirectional)
    np.testing.assert_array_equal(found, expected)
    far = find(torch.tensor([behind[0] * 9, behind[-1] * 9]), bidirectional, buckets, most)
    assert far.tolist() == [found[0], found[-1]], "further ones share the last bucket"


def test_dense_attention_adds_biases_by_distance() -> None:
    rng = np.random.default_rng(1)
    qkv, numbers = rng.normal(size=(1, 9, 2, 3, 4)), rng.normal(size=(2, 1, 4))
    bias = DistanceBiasConfig(4, 3)
    config = AttentionConfig(2, 2, 4, rope=None, scale=1.0, distance_bias=bias)

    @jax.jit
    def run(numbers: jax.Array, qkv: jax.Array) -> jax.Array:
        table = biases_by_distance(numbers, bias, bidirectional=False)
        return dense_attention(AttentionInputs(config, qkv, None, None, biases=table))

    found = np.asarray(run(numbers.astype(np.float32), qkv.astype(np.float32)))[0]
    buckets = [0, 1, 2, 3]  # one each, then everything beyond
    for head in range(2):
        q, k, v = (qkv[0, :, head, part] for part in range(3))
        for query in range(9):
            before = [buckets[min(query - key, 3)] for key in range(query + 1)]
            scores = k[: query + 1] @ q[query] + numbers[head, 0, before]
            weights = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(found[query, head], weights @ v[: query + 1], atol=1e-5)


@pytest.mark.parametrize("tokens", [12, 2 * QUERIES_AT_ONCE])
def test_segments_have_biases_of_both_directions(tokens: int) -> None:
    """Also where queries are taken in several parts: as in each segment alone."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.normal(size=(tokens, 2, 4)).astype(np.float32) for _ in range(3))
    table = rng.normal(size=(2, 11)).astype(np.float32)
    cut = tokens // 3
    segments = (np.arange(tokens) >= cut).astype(np.int32)
    found = np.asarray(compiled(segment_attention)(q, k, v, segments, 1.0, table))
    for part in (slice(0, cut), slice(cut, tokens)):
        length = len(range(tokens)[part])
        behind = np.clip(np.arange(length) - np.arange(length)[:, None], -5, 5)
        scores = np.einsum("thd,shd->hts", q[part], k[part]) + table[:, behind + 5]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        expected = np.einsum("hts,shd->thd", weights, v[part])
        np.testing.assert_allclose(found[part], expected, atol=1e-4)
