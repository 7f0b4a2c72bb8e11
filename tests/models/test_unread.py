"""Nothing that config.json says is passed over, but what changes no answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from jengine.config import ModelConfig
from jengine.models.registry import model_config
from jengine.models.unread import is_harmless, main, unread_keys
from tests.media.tiny_vision import CONFIGS
from tests.models.tiny_models import FAMILIES, config_class, tiny_settings

# Sizes of heads that transformers writes in addition to those that they follow from.
HEADS = {"head_dim", "qk_head_dim"}
DRAFTS = {"num_nextn_predict_layers", "num_mtp_layers"}  # layers that are not used
# First values of parameters, and ways to compute.
SCANS = {
    *("time_step_min", "time_step_max", "time_step_floor", "time_step_scale"),
    *("time_step_init_scheme", "rescale_prenorm_residual", "residual_in_fp32"),
    *("use_mambapy", "use_associative_scan", "expand"),
}
# Harmless only with the value that a default config has.
IF_UNUSED = {
    "deepseek_v2": HEADS,
    "deepseek_v3": HEADS | DRAFTS,
    "qwen2": {"sliding_window"},  # with use_sliding_window=False
    "qwen3": {"sliding_window"},
    "qwen3_moe": {"sliding_window"},
    "qwen2_moe": {"sliding_window", "max_window_layers"},
    "smollm3": {"sliding_window"},
    "exaone4": {"sliding_window_pattern"},  # layer_types follow from it
    "gemma3": {"_sliding_window_pattern"},  # layer_types, which are written too, follow from it
    "phi3": {"original_max_position_embeddings"},  # of longrope, whose factors come with it
    # Training, and how many tokens are computed at once.
    "bamba": {"z_loss_coefficient", "mamba_chunk_size", "num_logits_to_keep"},
    # What transformers' model does not read either: all published MPT have slopes.
    "mpt": {
        *("init_device", "learned_pos_emb", "norm_type", "embedding_fraction"),
        *("attn_config.architectures", "attn_config.dtype", "attn_config.attn_impl"),
    },
    # Training, and what follows from other keys.
    "dbrx": {
        *("num_key_value_heads", "ffn_config.hidden_size", "ffn_config.moe_loss_weight"),
        *("ffn_config.moe_jitter_eps", "attn_config.architectures", "attn_config.dtype"),
        *("ffn_config.architectures", "ffn_config.dtype"),
    },
    # First values of parameters, ways to compute, and what follows from other keys.
    "zamba2": {
        *("time_step_max", "time_step_floor", "chunk_size", "use_mem_eff_path"),
        *("use_mamba_kernels", "num_logits_to_keep", "mamba_headdim", "attention_head_dim"),
        *("attention_hidden_size", "kv_channels", "num_query_groups", "hybrid_layer_ids"),
    },
    # Those of experts, without which the layers are.
    "gemma4": {"num_experts", "top_k_experts", "moe_intermediate_size"},
    # The width of MLPs follows from these if block_auto_adjust_ff_dim; layer_types from the last.
    "lfm2": {"block_multiple_of", "block_ffn_dim_multiplier", "full_attn_idxs"},
    "qwen3_5_moe": {"intermediate_size"},  # every layer has experts
    "granite_hybrid": {"mamba_chunk_size"},
    "minicpm3": HEADS,
    "minimax_m2": {"rotary_dim"},  # rope_parameters have it as a part of the head
    "glm4_moe_lite": HEADS | {"first_k_dense_replace"},  # with mlp_layer_types
    "axk1": HEADS | {"moe_layer_freq", "first_k_dense_replace"},
    "hunyuan": {"eod_token_id"},  # transformers' model does not read it either
    "falcon_h1": {"mamba_chunk_size", "num_logits_to_keep", "mamba_expand"},
    "mamba": SCANS,
    "falcon_mamba": SCANS,
    "jamba": {"use_mambapy", "use_associative_scan", "use_mamba_kernels"},
    "youtu": HEADS | {"embedding_initializer_range"},
    "mamba2": {
        *("time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "chunk_size"),
        *("rescale_prenorm_residual", "residual_in_fp32"),
    },
    "nemotron_h": {
        # First values of parameters, and ways to compute.
        *("time_step_max", "time_step_floor", "time_step_limit", "rescale_prenorm_residual"),
        *("chunk_size", "num_logits_to_keep", "use_mamba_kernels", "mamba_ssm_cache_dtype"),
        # What transformers' model does not read either.
        *("attention_bias", "mamba_proj_bias", "sliding_window", "expand"),
        # Experts, which only layers have that are refused by name, and layers that draft.
        *("n_routed_experts", "n_shared_experts", "moe_intermediate_size", "moe_latent_size"),
        *("moe_shared_expert_intermediate_size", "moe_shared_expert_overlap"),
        *("num_experts_per_tok", "routed_scaling_factor", "n_group", "topk_group"),
        *("norm_topk_prob", "mtp_layers_block_type"),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_transformers_is_read_or_harmless(family: str) -> None:
    pytest.importorskip("torch")  # transformers' model classes are empty without it
    pytest.importorskip("transformers")
    written = config_class(family)(**tiny_settings(family)).to_dict()
    unread = unread_keys({**written, "architectures": [FAMILIES[family]]})
    assert not_harmless(unread) <= IF_UNUSED.get(family, set())


def not_harmless(names: Iterable[str]) -> set[str]:
    return {name for name in names if not is_harmless(name)}


# The model says these of its parts too.
OF_PARTS = {
    *("text_config.architectures", "text_config.dtype", "text_config.tie_word_embeddings"),
    *("vision_config.architectures", "vision_config.dtype", "vision_config.initializer_range"),
    *("text_config.initializer_range", "initializer_range"),
}
# Of sounds and of experts, and a length that no table has.
OF_GEMMA4 = {
    *("audio_config", "boa_token_id", "eoa_token_index", "vision_config.max_position_embeddings"),
    *(f"text_config.{key}" for key in IF_UNUSED["gemma4"]),
    "text_config.vocab_size_per_layer_input",  # without inputs of each layer
}
IF_UNUSED_BY_PICTURES = {
    # Turns of pictures have one kind.
    "qwen2_vl": {"text_config.sliding_window", "vision_config.rope_parameters.rope_type"},
    "qwen2_5_vl": {"text_config.sliding_window", "vision_config.rope_parameters.rope_type"},
    "qwen3_vl": {"vision_config.rope_parameters.rope_type"},
    # The size of CLIP's vectors; how many tokens a picture has follows from its size.
    "llava": {
        "image_seq_length",
        "vision_config.projection_dim",
        "vision_config.initializer_factor",
    },
    "internvl": {
        *("image_seq_length", "text_config.sliding_window", "vision_config.use_mask_token"),
        *("vision_config.hidden_dropout_prob", "vision_config.projection_dropout"),
        "vision_config.layer_scale_init_value",
    },
    "gemma3": {"text_config._sliding_window_pattern", "vision_config.vision_use_head"},
    "gemma4": OF_GEMMA4,
    "gemma4_ahead": OF_GEMMA4,
}


@pytest.mark.parametrize("family", CONFIGS)
def test_keys_of_parts_that_see_are_read_or_harmless(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    name, settings = CONFIGS[family]
    written = getattr(transformers, f"{name}Config")(**settings).to_dict()
    unread = unread_keys({**written, "architectures": [f"{name}ForConditionalGeneration"]})
    assert any(one.startswith("vision_config.") for one in unread)
    assert not_harmless(unread) <= OF_PARTS | IF_UNUSED_BY_PICTURES[family]


def test_keys_in_objects_are_looked_at_one_by_one() -> None:
    weights = {"num_bits": 4, "type": "int", "group_size": 16, "strategy": "group", "blocks": 3}
    quantized = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    settings = {**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]}
    unread = unread_keys({**settings, "quantization_config": quantized})
    assert "quantization_config.config_groups.group_0.weights.blocks" in unread
    assert not any(
        one.endswith(("num_bits", "group_size", "strategy", "targets")) for one in unread
    )


def test_a_reader_may_refuse_a_value_as_it_likes() -> None:
    """Whatever it raises, it has looked at the value."""
    hf = {**tiny_settings("llama"), "architectures": [FAMILIES["llama"]], "scale": "small"}
    factors: dict[object, float] = {"small": 1.0}

    def read(given: Mapping[str, object]) -> ModelConfig:
        return replace(model_config(hf), embed_scale=factors[given["scale"]])

    assert "scale" not in unread_keys(hf, read)
    assert "scale" in unread_keys(hf)


def test_what_is_unread_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]}
    bits = {"quant_method": "awq", "bits": 4, "group_size": 16, "lucky": 7}
    text = json.dumps({**settings, "residual_multiplier": 0.22, "quantization_config": bits})
    (tmp_path / "config.json").write_text(text)
    main(str(tmp_path))
    printed = "residual_multiplier: 0.22\nquantization_config.lucky: 7\n"
    assert capsys.readouterr().out == printed
