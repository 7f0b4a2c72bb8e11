"""Gemma 4: which layers keep keys and values, what is refused, and the text of whole folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jengine import LLM
from jengine.config import AttentionConfig, ModelConfig
from jengine.errors import CheckpointError, JengineError, UnsupportedFeature
from jengine.models import registry
from jengine.models.stages import stage_layout
from jengine.weights.safetensors_io import load_model, save_pretrained
from tests.models.tiny_models import FAMILIES, tiny_settings, write_tiny, write_tiny_native


def read(**overrides: Any) -> ModelConfig:
    settings = {"architectures": [FAMILIES["gemma4"]], **tiny_settings("gemma4", **overrides)}
    return registry.model_config(settings)


def attention(config: ModelConfig, layer: int) -> AttentionConfig:
    mixer = config.layers[layer].mixer
    assert isinstance(mixer, AttentionConfig)
    return mixer


def test_layers_that_read_others_keep_nothing() -> None:
    config = read()
    assert [attention(config, layer).source for layer in range(6)] == [None, None, None, 1, 1, 2]
    assert [attention(config, layer).is_source for layer in range(6)] == [False, True, True] + [
        False
    ] * 3
    assert [group.layers for group in config.groups] == [(0, 1), (2,)]
    assert [group.spec.head_dim for group in config.groups] == [12, 16]
    assert [layer.ffn.active_size for layer in config.layers] == [48] * 3 + [96] * 3


def test_full_layers_are_read_as_newer_files_say_it() -> None:
    newer = {"2": {"head_dim": 20, "num_key_value_heads": 1}, "05": {"head_dim": 20}}
    with pytest.raises(CheckpointError, match=r"per_layer_config.*the same head_dim"):
        read(per_layer_config=newer)
    newer["05"]["num_key_value_heads"] = 1
    config = read(per_layer_config=newer)
    assert attention(config, 2).head_dim == attention(config, 5).head_dim == 20
    assert attention(config, 2).num_kv_heads == 1 and attention(config, 1).head_dim == 12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable_moe_block": True}, "experts beside an MLP"),
        ({"use_bidirectional_attention": "all"}, "null or 'vision'"),
        ({"num_kv_shared_layers": 4}, "a layer of each kind before"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers"),
        ({"vocab_size_per_layer_input": 96}, "at least vocab_size"),
        ({"per_layer_config": {"two": {}}}, "numbers of layers"),
    ],
)
def test_what_is_not_built_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**given)


def test_stages_and_given_embeddings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeature, match="read what is made or kept in earlier ones"):
        stage_layout(read(), 2)
    folder = write_tiny_native(tmp_path, "gemma4")
    with pytest.raises(UnsupportedFeature, match="enable_prompt_embeds with Gemma4ForCausalLM"):
        LLM(folder, skip_tokenizer_init=True, enable_prompt_embeds=True)


@pytest.mark.slow
def test_it_reads_the_text_of_a_folder_with_images_and_audio(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    write_tiny(tmp_path / "text", "gemma4")
    plain = transformers.Gemma4ForCausalLM.from_pretrained(tmp_path / "text")
    tower = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    config = transformers.Gemma4Config(
        text_config=plain.config,
        vision_config={**tower, **heads, "position_embedding_size": 8, "patch_size": 4},
        audio_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{f"{kind}_token_id": 3 for kind in ("image", "video", "audio", "boi", "eoi")},
    )
    both = transformers.Gemma4ForConditionalGeneration(config)
    both.model.language_model.load_state_dict(plain.model.state_dict())
    both.save_pretrained(tmp_path / "both")
    named = json.loads((tmp_path / "both" / "config.json").read_text())["architectures"]
    assert named == ["Gemma4ForConditionalGeneration"]

    model, tokens = load_model(tmp_path / "both"), np.arange(5, 65)[None]
    with torch.no_grad():
        expected = plain(torch.tensor(tokens)).logits.numpy()
    np.testing.assert_allclose(model.score(jnp.asarray(tokens)), expected, atol=1e-4)
    save_pretrained(model, tmp_path / "saved")
    again = load_model(tmp_path / "saved").score(jnp.asarray(tokens))
    np.testing.assert_array_equal(again, model.score(jnp.asarray(tokens)))
    text = {"architectures": ["Gemma4ForCausalLM"]}
    given: dict[str, Any] = {"skip_tokenizer_init": True, "enforce_eager": True}
    with LLM(tmp_path / "both", hf_overrides=text, **given) as llm:
        image = {"image": np.zeros((8, 8, 3), np.uint8)}
        with pytest.raises(JengineError, match="image"):
            llm.generate({"prompt_token_ids": [5, 3, 6], "multi_modal_data": image})
