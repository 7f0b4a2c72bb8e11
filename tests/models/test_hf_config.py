"""config.json is read in both styles, and every wrong value is refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jengine.config import CacheSpec, ExpertsConfig, ModelConfig, RopeConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.reading.hf_vision import with_sections
from tests.models.tiny_models import FAMILIES, LLAMA3_ROPE, LONGROPE, YARN, tiny_settings

# Their defaults do not say how many experts a token has, or what each layer is, or name tokens that
# their vocabulary does not hold.
NOT_WHOLE = ("deepseek_v2", "nemotron_h", "starcoder2", "arcee")


def read(family: str, **overrides: Any) -> ModelConfig:
    given = tiny_settings(family, **{"architectures": [FAMILIES[family]], **overrides})
    return registry.model_config(given)


def test_both_styles_say_the_same() -> None:
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    old = read("llama", rope_theta=500000.0, rope_scaling=scaling, torch_dtype="bfloat16")
    new = read("llama", rope_parameters=LLAMA3_ROPE, dtype="bfloat16")
    assert old == new
    assert old.layers[0].mixer.rope == RopeConfig(500000.0, "llama3", 8.0, 1.0, 4.0, 64)
    assert old.dtype == "bfloat16"


def test_of_two_dtypes_the_newer_key_counts(caplog: pytest.LogCaptureFixture) -> None:
    assert read("llama", dtype="float32", torch_dtype="float16").dtype == "float32"
    assert caplog.messages == [
        "config.json: 'dtype' is float32 and 'torch_dtype' is float16; taking the former."
    ]


def test_the_oldest_style_calls_it_type() -> None:
    config = read("llama", rope_scaling={"type": "linear", "factor": 2})
    assert config.layers[0].mixer.rope == RopeConfig(10000.0, "linear", 2.0)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in NOT_WHOLE])
def test_missing_keys_have_the_defaults_of_transformers(family: str) -> None:
    pytest.importorskip("torch")  # transformers' model classes are empty without it
    transformers = pytest.importorskip("transformers")
    architecture = FAMILIES[family]
    theirs = getattr(transformers, architecture).config_class()
    written = {**theirs.to_dict(), "architectures": [architecture]}
    assert registry.model_config({"architectures": [architecture]}) == registry.model_config(
        written
    )


def test_qwen_windows_begin_at_max_window_layers() -> None:
    config = read("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert config.cache_specs == (CacheSpec("full", 2, 8), CacheSpec("sliding", 2, 8, 8))
    assert len(config.groups) == 2
    off = read("qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=0)
    assert off.cache_specs == (CacheSpec("full", 2, 8),) * 2


def test_mistral_windows_are_on_every_layer_or_on_none() -> None:
    assert read("mistral", sliding_window=7).cache_specs == (CacheSpec("sliding", 2, 8, 7),) * 2
    assert read("mistral", sliding_window=None).cache_specs == (CacheSpec("full", 2, 8),) * 2


def test_the_first_gemma_means_the_approximate_gelu() -> None:
    assert read("gemma", hidden_act="gelu") == read("gemma", hidden_act="gelu_pytorch_tanh")
    config = read("gemma", hidden_act="gelu", hidden_activation=None)
    assert config.layers[0].ffn.activation == "gelu_tanh"
    with pytest.raises(CheckpointError, match="hidden_activation"):
        read("gemma", hidden_activation="gelu")


def test_eos_token_ids() -> None:
    assert read("llama", eos_token_id=[5, 6]).eos_token_ids == (5, 6)
    assert read("llama", eos_token_id=None).eos_token_ids == ()
    assert read("llama", eos_token_id=0).eos_token_ids == (0,)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"vocab_size": 0}, "vocab_size"),
    ("llama", {"vocab_size": 97.0}, "vocab_size"),
    ("llama", {"vocab_size": "97"}, "vocab_size"),
    ("llama", {"vocab_size": None}, "vocab_size"),
    ("llama", {"hidden_size": -32}, "hidden_size"),
    ("llama", {"hidden_size": 2**40}, "hidden_size"),
    ("llama", {"hidden_size": 34}, "hidden_size"),
    ("llama", {"hidden_size": True}, "hidden_size"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"head_dim": 7}, "head_dim"),
    ("llama", {"rms_norm_eps": math.nan}, "rms_norm_eps"),
    ("llama", {"rms_norm_eps": math.inf}, "rms_norm_eps"),
    ("llama", {"rms_norm_eps": "1e-6"}, "rms_norm_eps"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
    ("llama", {"hidden_act": "mish"}, "hidden_act"),
    ("llama", {"hidden_act": ["silu"]}, "hidden_act"),
    ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ("llama", {"mlp_bias": 1}, "mlp_bias"),
    ("llama", {"eos_token_id": 97}, "eos_token_id"),
    ("llama", {"eos_token_id": [1, "2"]}, "eos_token_id"),
    ("llama", {"bos_token_id": -1}, "bos_token_id"),
    ("llama", {"dtype": "float8_e4m3fn"}, "dtype"),
    ("llama", {"dtype": "float32", "torch_dtype": "odd"}, "torch_dtype"),
    ("llama", {"quantization_config": {"quant_method": "odd"}}, "quantization_config"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("llama", {"rope_theta": 0}, "rope_theta"),
    ("llama", {"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "rope_type"),
    ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "factor"),
    ("llama", {"rope_parameters": {**YARN, "truncate": 1}}, "truncate"),
    ("llama", {"rope_parameters": {**YARN, "mscale": -1.0}}, "mscale"),
    ("deepseek_v2", {"mlp_bias": True}, "mlp_bias"),
    ("deepseek_v2", {"rope_interleave": False}, "rope_interleave"),
    ("deepseek_v2", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ("deepseek_v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
    ("deepseek_v3", {"index_topk": 2048}, "index_topk"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
    ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob"),
    ("deepseek_v2", {"norm_topk_prob": 1}, "norm_topk_prob"),
    ("deepseek_v2", {"n_group": 3}, "n_group"),
    ("deepseek_v2", {"topk_group": 1}, "num_experts_per_tok"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
    ("deepseek_v2", {"num_experts_per_tok": None}, "num_experts_per_tok"),
    ("llama", {"rope_parameters": {"full_attention": {}}}, "full_attention"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "type": "linear"}}, "type"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters"),
    ("llama", {"rope_parameters": {**LLAMA3_ROPE, "high_freq_factor": 1.0}}, "high_freq_factor"),
    ("llama", {"rope_parameters": {**LLAMA3_ROPE, "mscale": 1.0}}, "mscale"),
    ("llama", {"rope_parameters": LLAMA3_ROPE, "rope_theta": 1.0}, "rope_theta"),
    ("llama", {"rope_parameters": LLAMA3_ROPE, "rope_scaling": {"type": "linear"}}, "rope_scaling"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types"),
    ("qwen2", {"use_sliding_window": "yes"}, "use_sliding_window"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": 3}, "layer_types"),
    ("qwen3", {"attention_bias": None}, "attention_bias"),
    ("qwen3", {"max_window_layers": -1}, "max_window_layers"),
    ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ("gemma2", {"attn_logit_softcapping": 0.0}, "attn_logit_softcapping"),
    ("gemma2", {"final_logit_softcapping": "30"}, "final_logit_softcapping"),
    ("gemma2", {"sliding_window": None}, "sliding_window"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"use_bidirectional_attention": 1}, "use_bidirectional_attention"),
    ("gemma2", {"hidden_activation": "mish"}, "hidden_activation"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma3", {"rope_parameters": {"rope_type": "default"}}, "rope_type"),
    ("gemma3", {"rope_parameters": {"sliding_attention": {"rope_type": "ntk"}}}, "rope_type"),
    ("gemma3", {"rope_local_base_freq": -1.0}, "rope_theta"),
    ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern"),
    ("phi3", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "a list of 4 numbers"),
    ("phi3", {"rope_scaling": {"type": "su"}}, "longrope"),
    ("phi3", {"rope_parameters": LONGROPE | {"long_factor": [1.0, 2.0, 0, 1.0]}}, "long_factor"),
    ("phi3", {"rope_parameters": {**LONGROPE, "short_mscale": 2.0}}, "short_mscale"),
    ("phi3", {"partial_rotary_factor": 0.4}, "partial_rotary_factor"),
    ("olmo2", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ("gpt2", {"n_embd": 30}, "n_embd"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"activation_function": "mish"}, "activation_function"),
    ("mixtral", {"num_local_experts": 10**9}, "num_local_experts"),
    ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok"),
    ("qwen3_moe", {"num_experts": 0}, "num_experts"),
    ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("qwen3_moe", {"mlp_only_layers": [2]}, "mlp_only_layers"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ("qwen3_moe", {"norm_topk_prob": 1}, "norm_topk_prob"),
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
    ("dbrx", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "rope_theta"),
    ("dbrx", {"ffn_config": {"moe_normalize_expert_weights": 2.0}}, "moe_normalize_expert_weights"),
    ("zamba2", {"num_key_value_heads": 2}, "num_key_value_heads"),
    ("zamba2", {"use_long_context": True}, "use_long_context"),
    ("zamba2", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    ("zamba2", {"layers_block_type": ["hybrid", "mlp"]}, "layers_block_type"),
    ("glm4_moe", {"n_group": 3}, "n_group"),
    ("glm4_moe", {"n_group": 8, "topk_group": 8}, "n_group"),
    ("glm4_moe", {"topk_group": 1}, "topk_group"),
    ("glm4_moe", {"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
    ("gpt_oss", {"swiglu_limit": 6.0}, "swiglu_limit"),
    ("gpt_oss", {"hidden_act": "gelu"}, "hidden_act"),
    ("granite", {"logits_scaling": 0}, "logits_scaling"),
    ("llama4", {"no_rope_layers": [1]}, "no_rope_layers"),
    ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, "no_rope_layers"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window"),
    ("gpt_neox", {"rotary_pct": 0.1}, "partial_rotary_factor"),
    ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before"),
    ("opt", {"word_embed_proj_dim": 16}, "word_embed_proj_dim"),
    ("cohere2", {"use_qk_norm": True}, "use_qk_norm"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm"),
    ("phi", {"tie_word_embeddings": True}, "tie_word_embeddings"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "sliding_window_pattern"),
    ("olmo3", {"rope_parameters": {"rope_type": "default"}}, "rope_type"),
    ("llama4", {"moe_layers": [4]}, "moe_layers"),
    ("llama4", {"layer_types": ["sliding_attention"] * 4}, "layer_types"),
]


@pytest.mark.parametrize(("family", "overrides", "key"), WRONG)
def test_wrong_values_are_refused_by_name(family: str, overrides: dict[str, Any], key: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(family, **overrides)
    assert key in str(caught.value)
    assert "given" in str(caught.value)
    assert "expected" in str(caught.value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
KEYS = [
    *tiny_settings("qwen3"), "architectures", "layer_types", "rope_scaling", "rope_parameters",
    "rope_theta", "dtype", "torch_dtype", "sliding_window", "use_sliding_window", "hidden_act",
    "max_window_layers", "rms_norm_eps", "attention_bias", "mlp_bias", "auto_map",
    "quantization_config", "partial_rotary_factor", *tiny_settings("qwen3_moe"),
    *tiny_settings("gemma3"), *tiny_settings("gpt2"), "num_local_experts", "mlp_only_layers",
    "sliding_window_pattern", "rope_local_base_freq", "final_logit_softcapping",
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.dictionaries(st.sampled_from(KEYS), JSON_VALUES, min_size=1, max_size=3),
)
def test_any_json_is_read_or_refused(family: str, overrides: dict[str, Any]) -> None:
    try:
        config = read(family, **overrides)
    except CheckpointError:
        return
    assert isinstance(config, ModelConfig)


def test_unknown_architectures_name_the_supported_ones() -> None:
    with pytest.raises(CheckpointError, match=r"LlamaForCausalLM.*Qwen3ForCausalLM"):
        registry.model_config({"architectures": ["ElectraForMaskedLM"]})
    with pytest.raises(CheckpointError, match=r"'Add a model' in CONTRIBUTING\.md"):
        registry.model_config({"architectures": ["ElectraForMaskedLM"]})
    with pytest.raises(CheckpointError, match="Did you mean 'Qwen3ForCausalLM'"):
        registry.model_config({"architectures": ["Qwen3ForCausalLm"]})
    for wrong in (None, [], "LlamaForCausalLM", [1], ["a", "b"]):
        with pytest.raises(CheckpointError, match="architectures"):
            registry.model_config({"architectures": wrong})


def test_what_is_missing_is_named() -> None:
    missing = {
        "DeepseekV32ForCausalLM": "sparse indexer",
        "UMT5ForConditionalGeneration": "biases of scores by distance",
        "GlmMoeDsaForCausalLM": "sparse indexer",
        "Gemma3nForConditionalGeneration": "AltUp",
    }
    for name, what in missing.items():
        with pytest.raises(CheckpointError, match=f"{name}.*{what}"):
            registry.model_config({"architectures": [name]})


def test_yarn_scales_rotations_and_the_scores_of_latent_attention() -> None:
    """Both follow from the factor's logarithm, unless the rotation's is given."""
    plain = {key: YARN[key] for key in ("rope_type", "factor", "original_max_position_embeddings")}
    log = 0.1 * math.log(8.0)

    def rope(**more: float | None) -> RopeConfig:
        mixer = read("deepseek_v3", rope_parameters={**plain, **more}).layers[0].mixer
        assert mixer.rope is not None
        return mixer.rope

    assert rope().attention_factor == pytest.approx(1 + log)
    assert rope(attention_factor=1.5, mscale=2.0, mscale_all_dim=1.0).attention_factor == 1.5
    both = rope(mscale=2.0, mscale_all_dim=1.0)
    assert both.attention_factor == pytest.approx((1 + 2 * log) / (1 + log))
    assert both.score_scale == pytest.approx((1 + log) ** 2)
    assert rope().score_scale == rope(mscale=1.0, mscale_all_dim=0).score_scale == 1.0
    assert read("llama", rope_parameters=YARN).layers[0].mixer.rope == RopeConfig(
        10000.0, "yarn", 8.0, original_max_position=64, beta_fast=6.0, mscale=1.0,
        mscale_all_dim=1.3, attention_factor=(1 + log) / (1 + 1.3 * log),
    )  # fmt: skip


def test_code_of_a_model_folder_is_never_used() -> None:
    auto_map = {"AutoModelForCausalLM": "modeling_evil.EvilForCausalLM"}
    with pytest.raises(CheckpointError, match="never run"):
        registry.model_config({"architectures": ["EvilForCausalLM"], "auto_map": auto_map})
    assert read("llama", auto_map=auto_map) == read("llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_configs_write_and_read_back(family: str) -> None:
    config = read(family, eos_token_id=[3, 4], dtype="bfloat16")
    assert registry.model_config(registry.write_config(config)) == config


def test_what_a_family_cannot_express_is_refused() -> None:
    sliding = read("mistral")
    with pytest.raises(CheckpointError, match=r"cannot express layers\[0\]=.*window=16"):
        registry.write_config(ModelConfig(**{**vars(sliding), "architecture": "LlamaForCausalLM"}))


def test_gemma3_layers_differ_by_window_and_rotation() -> None:
    config = read("gemma3", num_hidden_layers=7, layer_types=None)
    mixers = [layer.mixer for layer in config.layers]
    assert [mixer.window for mixer in mixers] == [16] * 5 + [None, 16]
    assert [mixers[layer].rope.theta for layer in (0, 5, 6)] == [1e4, 1e6, 1e4]
    assert len(config.groups) == 2


def test_llama4_attends_in_chunks_that_are_not_the_whole_context() -> None:
    mixers = [layer.mixer for layer in read("llama4", attention_chunk_size=64).layers]
    assert [(one.window, one.in_chunks) for one in mixers] == [(64, True)] * 3 + [(None, False)]
    assert mixers[0].cache.kind == "chunked" and mixers[3].cache.kind == "full"
    for whole in (None, 512):
        given = read("llama4", attention_chunk_size=whole)
        assert not any(layer.mixer.in_chunks for layer in given.layers)


def test_layers_that_draft_tokens_are_ignored() -> None:
    ignored = registry.ignored_tensors(read("glm4_moe"))
    for name, is_ignored in (("model.layers.2.mlp.x", True), ("model.layers.1.mlp.x", False)):
        assert any(rule.matches(name) for rule in ignored) == is_ignored


def test_experts_stand_on_the_layers_that_are_asked_for() -> None:
    config = read(
        "qwen3_moe", num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3], num_experts=4
    )
    assert [isinstance(layer.ffn, ExpertsConfig) for layer in config.layers] == [
        False, True, False, False, False, True,
    ]  # fmt: skip
    assert read("qwen3_moe", num_local_experts=8) == read("qwen3_moe")


@pytest.mark.parametrize(
    ("family", "rope", "expected"),
    [
        ("llama", {"rope_type": "linear", "factor": 4.0}, (2048, 2048)),
        ("llama", {"rope_type": "dynamic", "factor": 2.5}, (1280, 1280)),
        ("llama", YARN, (512, 512)),
        ("gemma3", {"rope_type": "linear", "factor": 4.0}, (512, 512)),
        ("phi3", {**LONGROPE, "original_max_position_embeddings": 64}, (512, 64)),
    ],
)
def test_how_long_sequences_may_be_and_usually_are(
    family: str, rope: dict[str, Any], expected: tuple[int, int]
) -> None:
    """As in vLLM."""
    config = read(family, rope_scaling=rope)
    assert (config.longest_context, config.usual_context) == expected


@pytest.mark.parametrize("sections", [(24, 20, 20), (2, 9, 1), (1, 2, 30), (5, 0, 0)])
def test_pairs_take_turns_as_far_as_there_are_any(sections: tuple[int, int, int]) -> None:
    """As transformers' slices, which clip."""
    found = np.zeros(64, int)
    for plane in (1, 2):
        found[plane : sections[plane] * 3 : 3] = plane
    rope = RopeConfig(1e4, sections=sections, interleaved=True)
    assert rope.mrope_axes(64) == tuple(found)


def test_sections_one_after_the_other_are_those_of_a_head() -> None:
    config = with_sections(read("llama", head_dim=8), (1, 1, 2))
    assert config.layers[0].mixer.rope.mrope_axes(4) == (0, 1, 2, 2)
    with pytest.raises(CheckpointError, match=r"'mrope_section': given \[2, 1, 2\].* the 4 pairs"):
        with_sections(config, (2, 1, 2))


def test_hunyuan_stretches_the_base_of_its_rotation_in_both_styles() -> None:
    scaling = {"alpha": 1000.0, "beta_fast": 32, "factor": 1.0, "mscale": 1.0, "type": "dynamic"}
    old = read("hunyuan", rope_theta=1e4, rope_scaling=scaling)
    new = read("hunyuan", rope_parameters={**scaling, "rope_type": "dynamic", "rope_theta": 1e4})
    assert old == new
    assert old.layers[0].mixer.rope == RopeConfig(1e4 * 1000.0 ** (12 / 10))
