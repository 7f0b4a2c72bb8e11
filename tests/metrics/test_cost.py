"""Estimated operations and bytes: checked against sums written out by hand."""

from __future__ import annotations

from dataclasses import replace

from jengine.config import (
    AttentionConfig,
    ExpertsConfig,
    LatentConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
)
from jengine.counts import Counts
from jengine.metrics.cost import CostModel

HIDDEN, VOCAB, WIDE = 8, 100, 32
MIXER = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=2)
DENSE = LayerConfig(MIXER, MlpConfig(WIDE))
MODEL = ModelConfig("tiny", VOCAB, HIDDEN, 64, (DENSE, DENSE), dtype="bfloat16")
PER_LAYER = HIDDEN * 2 * (4 + 2 + 2 + 4) + 3 * HIDDEN * WIDE


def test_one_decode_step_of_a_dense_model() -> None:
    """Two rows, with contexts of 10 and 20 tokens."""
    counts = Counts(
        steps=1, query_tokens=2, generation_tokens=2, attended_tokens=30, loaded_tokens=30
    )
    cost = CostModel(MODEL).of(counts)
    attention = 2 * 4 * (4 * 2) * 30
    assert cost.operations == 2 * 2 * PER_LAYER * 2 + attention + 2 * 2 * VOCAB * HIDDEN
    kept = 2 * 2 * 2 * 2  # keys and values of 2 heads of 2 numbers of 2 bytes
    assert cost.read == 2 * (2 * PER_LAYER + VOCAB * HIDDEN) + 2 * kept * 30
    assert cost.written == 2 * kept * 2


def test_devices_share_the_cost() -> None:
    counts = Counts(steps=3, query_tokens=9, attended_tokens=30, loaded_tokens=30)
    one, four = CostModel(MODEL).of(counts), CostModel(MODEL, 4).of(counts)
    assert four.operations == one.operations / 4 and four.read == one.read / 4


def test_a_window_bounds_attention() -> None:
    windowed = replace(MODEL, layers=(LayerConfig(replace(MIXER, window=5), MlpConfig(WIDE)),) * 2)
    counts = Counts(steps=1, query_tokens=2, attended_tokens=2000, loaded_tokens=2000)
    short = replace_attended(counts, 10)
    assert CostModel(windowed).of(counts) == CostModel(windowed).of(short)


def replace_attended(counts: Counts, number: int) -> Counts:
    return Counts(
        steps=counts.steps, query_tokens=counts.query_tokens, attended_tokens=number,
        loaded_tokens=number,
    )  # fmt: skip


def test_codes_in_the_cache_are_a_byte_each_and_a_scale() -> None:
    counts = Counts(steps=1, query_tokens=2, loaded_tokens=30)
    cost = CostModel(MODEL, has_codes=True).of(counts)
    kept = 2 * 2 * (2 + 2)  # keys and values of 2 heads of 2 numbers and a scale of 2 bytes
    assert cost.read == 2 * (2 * PER_LAYER + VOCAB * HIDDEN) + 2 * kept * 30
    assert cost.written == 2 * kept * 2


def test_latent_attention_reads_one_vector_per_token() -> None:
    """Ranks of 4 and 3, heads with 2 + 2 lanes and values of 3: a decode attends to 4 + 2."""
    mixer = LatentConfig(4, 4, nope_dim=2, rope_dim=2, value_dim=3, query_rank=3)
    model = replace(MODEL, layers=(LayerConfig(mixer, MlpConfig(WIDE)),))
    counts = Counts(steps=1, query_tokens=2, attended_tokens=30, loaded_tokens=30)
    queries, entries, up, out = HIDDEN * 3 + 3 * 4 * 4, HIDDEN * 6, 4 * 4 * 5, 4 * 3 * HIDDEN
    matrices = queries + entries + up + out + 3 * HIDDEN * WIDE
    cost = CostModel(model).of(counts)
    assert cost.operations == 2 * 2 * matrices + 2 * 4 * (6 + 4) * 30
    assert cost.read == 2 * (matrices + VOCAB * HIDDEN) + 2 * 6 * 30
    assert cost.written == 2 * 6 * 2


def test_experts_are_read_as_far_as_tokens_reach_them() -> None:
    experts = LayerConfig(MIXER, ExpertsConfig(8, 2, WIDE))
    model = replace(MODEL, layers=(experts,))
    few = CostModel(model).of(Counts(steps=1, query_tokens=1))
    many = CostModel(model).of(Counts(steps=1, query_tokens=1000))
    one_expert = 3 * HIDDEN * WIDE * 2
    assert abs((many.read - few.read) - 6 * one_expert) < 1e-6
    assert few.operations == 2 * (HIDDEN * 2 * 12 + 2 * 3 * HIDDEN * WIDE)


def test_an_mlp_that_all_tokens_take_is_read_once() -> None:
    experts = ExpertsConfig(8, 2, WIDE)
    alone, shared = (
        CostModel(replace(MODEL, layers=(LayerConfig(MIXER, ffn),))).of(
            Counts(steps=1, query_tokens=3)
        )
        for ffn in (experts, replace(experts, shared_size=WIDE))
    )
    assert abs(shared.read - alone.read - 3 * HIDDEN * WIDE * 2) < 1e-6
    assert shared.operations - alone.operations == 3 * 2 * 3 * HIDDEN * WIDE


def test_nothing_costs_nothing() -> None:
    cost = CostModel(MODEL).of(Counts())
    assert (cost.operations, cost.read, cost.written) == (0, 0, 0)
