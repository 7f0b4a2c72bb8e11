"""Every layer in one stage, in order, in a slot of its kind; as few slots as possible."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jengine.config import AttentionConfig, ExpertsConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.errors import ConfigError
from jengine.models.stages import stage_layout

HEADS = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 8}
KINDS = {
    "f": LayerConfig(AttentionConfig(**HEADS), MlpConfig(8)),
    "s": LayerConfig(AttentionConfig(**HEADS, window=4), MlpConfig(8)),
    "e": LayerConfig(AttentionConfig(**HEADS), ExpertsConfig(4, 2, 8)),
}


def model(kinds: str) -> ModelConfig:
    """One letter per layer: f(ull), s(liding), e(xperts)."""
    return ModelConfig("test", 8, 8, 8, tuple(KINDS[kind] for kind in kinds))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.text("fse", min_size=1, max_size=12), st.integers(1, 6), st.booleans())
def test_every_layer_has_one_place(kinds: str, stages: int, repeated: bool) -> None:
    config = model(kinds * 3 if repeated else kinds)
    count = len(config.layers)
    if stages > count:
        with pytest.raises(ConfigError, match=f"pipeline_parallel_size={stages}: expected 1 to"):
            stage_layout(config, stages)
        return
    layout = stage_layout(config, stages)
    held = [[layer for layer in slots if layer is not None] for slots in layout.stages]
    assert [layer for slots in held for layer in slots] == list(range(count))
    assert all(held), "every stage has a layer"
    assert {len(slots) for slots in layout.stages} == {layout.num_slots}
    for stage, slots in enumerate(layout.stages):
        for slot, layer in enumerate(slots):
            if layer is not None:
                assert config.layers[layer] == config.layers[slot]
                assert layout.stage_of(layer) == stage
    assert layout.is_even == (layout.num_slots * stages == count)


@pytest.mark.parametrize(
    ("kinds", "stages", "slots"),
    [
        ("f" * 32, 4, 8),
        ("f" * 3, 2, 2),
        ("f" * 5, 4, 2),
        ("sf" * 13, 2, 13 + 1),  # the second half begins with the other kind
        ("sssssf" * 4 + "ss", 2, 14),
        ("sssssf" * 4 + "ss", 4, 8),
        ("feeeeeee", 2, 4 + 1),  # one slot that only the first stage uses
    ],
)
def test_few_slots_are_left_out(kinds: str, stages: int, slots: int) -> None:
    assert stage_layout(model(kinds), stages).num_slots == slots
