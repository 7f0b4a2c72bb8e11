"""The shapes and dtypes in annotations of device functions are those that they really get.

Engines never import jaxtyping: the annotations are strings. Here they are resolved, every function
that has some is wrapped, and models are traced through all of them, with and without a cache.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import jax.numpy as jnp
import pytest
from jax import Array

from jengine.config import HeadTransformConfig
from jengine.runner.variants.buckets import Bucket
from jengine.runner.variants.features import Features, variants
from tests.array_shapes.annotations import annotated, check_all, checked
from tests.array_shapes.parts import (
    trace_arrivals,
    trace_codes,
    trace_exchanges,
    trace_slots,
    trace_what_steps_leave_out,
)
from tests.array_shapes.steps import (
    DRAFTERS,
    tiny,
    tiny_pooling,
    tiny_speech,
    tiny_stack,
    tiny_text,
    tiny_vision,
    trace_chain,
    trace_encoder,
    trace_scores,
    trace_scores_with_pictures,
    trace_step,
    trace_tower,
)
from tests.media.tiny_vision import CONFIGS

if TYPE_CHECKING:
    from jaxtyping import Float

# Declared for others to define.
INTERFACES = {
    "jengine.models.language_model.LanguageModel.__call__",
    "jengine.models.language_model.LanguageModel.logits",
    "jengine.models.language_model.LanguageModel.live_logits",
    "jengine.quantization.scheme.WeightScheme.lookup",
    "jengine.quantization.scheme.WeightScheme.multiply",
    "jengine.quantization.scheme.WeightScheme.multiply_groups",
    "jengine.runner.step.draft_stage.Drafter.__call__",
}
BUCKET = Bucket(4, 16, 16)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of annotated functions that were called, while all of them are checked."""
    return check_all(monkeypatch)


@pytest.mark.slow
def test_every_annotation_is_true(seen: set[str]) -> None:
    known = variants(5, "raw_logprobs")
    whole = (
        "mistral",
        "qwen3",
        "gemma2",
        "gpt2",
        "deepseek_v3",
        "gpt_oss",
        "llama4",
        "bamba",
        "gemma4",
        "apertus",
        "mamba",
        "zamba2",
    )
    for family in whole:
        trace_scores(tiny(family))
    trace_scores(tiny("cohere", use_qk_norm=True))
    transform = HeadTransformConfig("gelu", bias=True)
    trace_scores(replace(tiny("mistral"), norm="rms_bare", head_transform=transform))
    for family in (
        "mistral",
        "qwen3_moe",
        "olmo2",
        "deepseek_v2",
        "lfm2",
        "falcon_h1",
        "qwen3_next",
    ):
        trace_step(tiny(family), BUCKET, known["scored"])
    trace_step(tiny("mistral"), Bucket(4, 0, 16, repeats=3), known["greedy"])
    for method in DRAFTERS:
        trace_step(tiny("mistral"), BUCKET, known["sampled"], method=method)
    trace_step(tiny("mistral"), BUCKET, known["sampled"], stored="int8")
    trace_chain(tiny("mistral"), BUCKET, known["scored"])
    adapted = variants(5, "raw_logprobs", adapters=True)["scored+adapters"]
    for family in ("mistral", "qwen3_moe"):
        trace_step(tiny(family), BUCKET, adapted, slots=2)
    trace_pooling()
    trace_images()
    for config in (tiny_speech(), tiny_text(), tiny_stack()):
        trace_encoder(config)
        trace_step(config, BUCKET, known["sampled"])
    trace_arrivals()
    trace_what_steps_leave_out()
    trace_codes()
    trace_exchanges()
    trace_slots()
    assert annotated().keys() - seen == INTERFACES
    assert len(seen) > 50


def trace_pooling() -> None:
    """Trace models that pool: an encoder's first token and mean, a decoder's last token. One of
    them has windows, in a step with several blocks of queries."""
    each = Features()
    modern = {"classifier_pooling": "mean", "local_attention": 16}
    trace_chain(tiny_pooling("BertForSequenceClassification"), BUCKET, each)
    windows = tiny_pooling("ModernBertForSequenceClassification", **modern)
    trace_chain(windows, Bucket(4, 160, 16), each)
    trace_chain(tiny_pooling("MistralModel", num_key_value_heads=2), BUCKET, each)


def trace_images() -> None:
    """Trace every tower, with queries all at once and in tiles, and a step that reads images."""
    for family in CONFIGS:
        trace_tower(tiny_vision(family), 28)
    trace_tower(tiny_vision("qwen2_vl"), 1024)
    trace_scores_with_pictures(tiny_vision("qwen2_vl"))
    for family in ("qwen3_vl", "gemma3"):
        trace_step(tiny_vision(family), BUCKET, variants(5, "raw_logprobs")["sampled"])


def swapped(x: Float[Array, "a b"]) -> Float[Array, "b a"]:
    """Wrong unless both dimensions are equal."""
    return x


def test_a_wrong_annotation_fails() -> None:
    guarded = checked("swapped", swapped, set())
    guarded(jnp.zeros((3, 3)))
    with pytest.raises(TypeError, match="swapped returns"):
        guarded(jnp.zeros((2, 3)))
    with pytest.raises(TypeError, match="x is"):
        guarded(jnp.zeros((2, 3), jnp.int32))
