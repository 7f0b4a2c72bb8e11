"""Every family scores whole sequences as transformers does in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import RopeConfig
from jengine.layers.rope import inverse_frequencies
from jengine.models.decoder import Decoder
from jengine.weights.folder import open_checkpoint
from jengine.weights.safetensors_file import write_file
from jengine.weights.safetensors_io import load_model, save_pretrained
from tests.models.tiny_models import LLAMA3_ROPE, LONGROPE, YARN, write_tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MIXED = {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": 9,
}
# The norms undo the factor of the rotation before them, except that epsilon is less beside it.
NORMS_AFTER_YARN = {"rope_parameters": {**YARN, "rope_theta": 500.0}, "rms_norm_eps": 0.1}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied-linear-rope": (
        "llama",
        {
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 20000.0},
        },
    ),
    "llama-dynamic-rope": (
        "llama",
        {
            "max_position_embeddings": 100,
            "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
        },
    ),
    "llama-bias-llama3-rope": (
        "llama",
        {
            "attention_bias": True,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "llama-mlp-bias": ("llama", {"mlp_bias": True}),
    "llama-own-head-dim": ("llama", {"head_dim": 12, "num_key_value_heads": 1}),
    "mistral": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None, "head_dim": 12}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-max-window-layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen2-layer-types": ("qwen2", MIXED),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-layer-types": ("qwen3", {**MIXED, "attention_bias": True}),
    "gemma": ("gemma", {}),
    "gemma-bias-untied": ("gemma", {"attention_bias": True, "tie_word_embeddings": False}),
    "gemma2": ("gemma2", {"num_hidden_layers": 3}),
    "gemma2-sharp-caps": (
        "gemma2",
        {
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "gemma2-no-caps": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma3-pattern": ("gemma3", {"num_hidden_layers": 7, "layer_types": None}),
    "gemma3-two-ropes": (
        "gemma3",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 2e4, "factor": 8.0},
            },
            "attention_bias": True,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3-old-style-ropes": (
        "gemma3",
        {
            "rope_theta": 30000.0,
            "rope_local_base_freq": 700.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
    ),
    "gemma4": ("gemma4", {}),
    "gemma4-keys-are-values": (
        "gemma4",
        {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
            "attention_bias": True,
            "tie_word_embeddings": False,
            "layer_types": None,
        },
    ),
    "gemma4-shared-keys-are-values": (
        "gemma4",
        {"attention_k_eq_v": True, "num_kv_shared_layers": 1, "final_logit_softcapping": None},
    ),
    "phi3": ("phi3", {}),
    "phi3-window-tied": (
        "phi3",
        {"sliding_window": 9, "tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "phi3-longrope": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 256},
    ),
    "phi3-longrope-part": (
        "phi3",
        {
            "rope_parameters": {
                **LONGROPE,
                "short_factor": [1.1, 1.2, 1.3],
                "long_factor": [1.5, 2.5, 9.0],
                "partial_rotary_factor": 0.75,
            },
            "original_max_position_embeddings": 8,
            "tie_word_embeddings": True,
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo2-bias-all-heads": (
        "olmo2",
        {"attention_bias": True, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "seed-oss": ("seed_oss", {}),
    "seed-oss-other-biases": (
        "seed_oss",
        {"attention_bias": False, "attention_out_bias": True, "tie_word_embeddings": True},
    ),
    "seed-oss-mlp-bias": ("seed_oss", {"mlp_bias": True}),
    "gpt2": ("gpt2", {}),
    "gpt2-untied-unscaled": (
        "gpt2",
        {"tie_word_embeddings": False, "scale_attn_weights": False, "n_inner": None},
    ),
    "mixtral": ("mixtral", {}),
    "mixtral-window-own-head-dim": ("mixtral", {"sliding_window": 9, "head_dim": 12}),
    "qwen3-moe": ("qwen3_moe", {}),
    "qwen3-moe-some-layers": (
        "qwen3_moe",
        {
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": False,
            "attention_bias": True,
        },
    ),
    "deepseek-v2": ("deepseek_v2", {"rope_parameters": {**YARN, "mscale": 0.707}}),
    "deepseek-v2-lite": (
        "deepseek_v2",
        {"q_lora_rank": None, "attention_bias": True, "topk_method": "greedy", "n_group": None},
    ),
    "deepseek-v3": ("deepseek_v3", {"rope_parameters": YARN}),
    "deepseek-v3-bias-halves": (
        "deepseek_v3",
        {
            "attention_bias": True,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "first_k_dense_replace": 0,
            "tie_word_embeddings": True,
            "rope_parameters": {**YARN, "mscale_all_dim": 0, "truncate": False},
        },
    ),
    "qwen2-moe": ("qwen2_moe", {}),
    "qwen2-moe-some-layers": (
        "qwen2_moe",
        {"decoder_sparse_step": 2, "norm_topk_prob": True, "qkv_bias": False},
    ),
    "olmoe": ("olmoe", {}),
    "olmoe-normalized": ("olmoe", {"norm_topk_prob": True, "num_key_value_heads": 4}),
    "glm4-moe": ("glm4_moe", {"attention_bias": True}),
    "glm4-moe-one-group": (
        "glm4_moe",
        {
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "use_qk_norm": False,
            "first_k_dense_replace": 0,
            "n_shared_experts": 2,
            "num_nextn_predict_layers": 1,
        },
    ),
    "gpt-oss": ("gpt_oss", {}),
    "gpt-oss-plain-rope": (
        "gpt_oss",
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": False,
        },
    ),
    "granite": ("granite", {}),
    "granite-biases": ("granite", {"mlp_bias": True, "attention_bias": True}),
    "granite-moe": ("granite_moe", {"num_experts_per_tok": 6}),
    "granite-moe-shared": ("granite_moe_shared", {"attention_bias": True}),
    "modernbert-biases": (
        "modernbert_decoder",
        {"mlp_bias": True, "attention_bias": True, "norm_bias": True, "pad_token_id": 0},
    ),
    "llama4": ("llama4", {}),
    "llama4-chunks": ("llama4", {"attention_chunk_size": 8}),
    "llama4-yarn": ("llama4", NORMS_AFTER_YARN),
    "llama4-other-choices": (
        "llama4",
        {
            "num_experts_per_tok": 2,
            "interleave_moe_layer_step": 1,
            "attention_bias": True,
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
    ),
    "gpt-neox": ("gpt_neox", {}),
    "gpt-neox-serial": (
        "gpt_neox",
        {"use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0},
    ),
    "opt": ("opt", {}),
    "cohere": ("cohere", {"attention_bias": True}),
    "cohere2": ("cohere2", {}),
    "glm4": ("glm4", {}),
    "glm": ("glm", {"attention_bias": False, "partial_rotary_factor": 0.25}),
    "stablelm": ("stablelm", {}),
    "stablelm-parallel": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True}),
    "nemotron": ("nemotron", {}),
    "nemotron-biases": ("nemotron", {"mlp_bias": True, "attention_bias": True}),
    "olmo3": ("olmo3", {}),
    "olmo3-two-ropes": (
        "olmo3",
        {
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 3e5,
                    "factor": 8.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "smollm3": ("smollm3", {"mlp_bias": True}),
    "smollm3-other-layers": ("smollm3", {"no_rope_layers": [0, 1, 1, 0], "attention_bias": True}),
    "phi": ("phi", {}),
    "lfm2": ("lfm2", {"conv_bias": True, "conv_L_cache": 4, "tie_word_embeddings": False}),
    "bamba": (
        "bamba",
        {"mamba_proj_bias": True, "time_step_limit": [0.2, 1.1], "tie_word_embeddings": True},
    ),
    "bamba-one-group": (
        "bamba",
        {"mamba_n_groups": 1, "mamba_conv_bias": False, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen3-next": ("qwen3_next", {}),
    "qwen3-next-dense": (
        "qwen3_next",
        {"mlp_only_layers": [0, 2], "attention_bias": True, "linear_num_value_heads": 2},
    ),
    "granite-hybrid": ("granite_hybrid", {}),
    "granite-hybrid-dense": (
        "granite_hybrid",
        {"num_local_experts": 0, "position_embedding_type": "rope", "attention_bias": True},
    ),
    "hunyuan": ("hunyuan", {"attention_bias": True, **NORMS_AFTER_YARN}),
    "hunyuan-alpha": (
        "hunyuan",
        {
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 50.0,
                "factor": 1.0,
                "rope_theta": 1e4,
                "mscale": 1.0,
            },
            "tie_word_embeddings": True,
        },
    ),
    "apertus": ("apertus", {}),
    "apertus-other-choices": (
        "apertus",
        {"rope_parameters": LLAMA3_ROPE, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "cohere-plus": ("cohere", {"use_qk_norm": True}),
    "mamba2": ("mamba2", {}),
    "mamba2-biases": (
        "mamba2",
        {
            "use_bias": True,
            "use_conv_bias": False,
            "tie_word_embeddings": True,
            "n_groups": 1,
            "time_step_limit": (0.2, 0.9),
        },
    ),
    "nemotron-h": ("nemotron_h", {}),
    "nemotron-h-biases": ("nemotron_h", {"mlp_bias": True, "use_bias": True, "time_step_min": 0.3}),
    "qwen3-5": ("qwen3_5", {}),
    "qwen3-5-moe": ("qwen3_5_moe", {"linear_num_value_heads": 2}),
    "lfm2-adjusted": (
        "lfm2",
        {
            "block_auto_adjust_ff_dim": True,
            "block_multiple_of": 8,
            "block_ffn_dim_multiplier": 1.3,
            "num_hidden_layers": 3,
            "layer_types": ["conv", "conv", "full_attention"],
        },
    ),
    "exaone4": ("exaone4", {}),
    "exaone4-no-window": (
        "exaone4",
        {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    ),
    "falcon-h1": ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "falcon-h1-gate-alone": (
        "falcon_h1",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "projectors_bias": True,
        },
    ),
    "falcon-h1-norm-first": (
        "falcon_h1",
        # The norm divides by what heads make, so that larger weights are not exact in float32.
        {"mamba_rms_norm": True, "tie_word_embeddings": True, "initializer_range": 0.15},
    ),
    "bloom": ("bloom", {}),
    # Slopes of heads that are no power of two.
    "bloom-untied-6-heads": (
        "bloom",
        {"num_attention_heads": 6, "hidden_size": 36, "tie_word_embeddings": False},
    ),
    "mpt": (
        "mpt",
        {
            "num_attention_heads": 3,
            "hidden_size": 36,
            "attn_config": {"softmax_scale": 0.3},
        },
    ),
    "dbrx": ("dbrx", {}),
    "zamba2": ("zamba2", {}),
    "zamba2-biases": (
        "zamba2",
        {
            "add_bias_linear": True,
            "use_shared_attention_adapter": False,
            "use_mem_rope": False,
            "num_key_value_heads": 2,
        },
    ),
    "bitnet": ("bitnet", {"attention_bias": True}),
    "starcoder2": ("starcoder2", {}),
    "starcoder2-plain": ("starcoder2", {"use_bias": False, "sliding_window": None}),
    "minicpm3": ("minicpm3", {}),
    # As published ones have it, on the part of a head that is rotated.
    "minicpm3-longrope": (
        "minicpm3",
        {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 256}},
    ),
    "ernie4-5": ("ernie4_5", {"use_bias": True}),
    "arcee": ("arcee", {"mlp_bias": True}),
    "minimax-m2": ("minimax_m2", {}),
    "axk1": ("axk1", {}),
    "glm4-moe-lite": ("glm4_moe_lite", {}),
    "glm4-moe-lite-layers": (
        "glm4_moe_lite",
        {"mlp_layer_types": ["sparse", "dense"], "rope_interleave": False, "attention_bias": True},
    ),
    "qwen3-moe-window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 9}),
}
TOLERANCE = 1e-4
# Of the largest logit, where that allows more: float32 rounds, and not alike on every processor.
RELATIVE_TOLERANCE = 2e-5
# One variant of each mathematics is the default run's: what another variant there shows as well
# waits for the slow run.
LATER = {
    "llama-mlp-bias", "seed-oss-mlp-bias", "gpt-neox-serial", "cohere", "glm4", "glm",
    "stablelm", "stablelm-parallel", "nemotron", "nemotron-biases", "olmo3", "olmo3-two-ropes",
    "smollm3", "smollm3-other-layers", "exaone4", "exaone4-no-window", "granite-moe-shared",
    "granite", "qwen2-moe", "opt", "phi", "llama-own-head-dim", "mistral-no-window",
    "qwen2-max-window-layers", "gemma-bias-untied", "gemma2-no-caps", "gemma3-old-style-ropes",
    "phi3-window-tied", "olmo2-bias-all-heads", "seed-oss-other-biases", "gpt2-untied-unscaled",
    "mixtral-window-own-head-dim", "qwen3-moe-window", "deepseek-v2", "deepseek-v2-lite",
    "deepseek-v3-bias-halves", "qwen2-moe-some-layers", "olmoe", "olmoe-normalized",
    "glm4-moe-one-group", "gpt-oss-plain-rope", "granite-biases", "granite-moe",
    "llama4-other-choices", "lfm2-adjusted", "bamba-one-group", "qwen3-next-dense", "qwen3-5",
    "qwen3-5-moe",
    "granite-hybrid-dense", "nemotron-h-biases", "llama-tied-linear-rope",
    "llama-dynamic-rope", "mistral", "qwen2-layer-types", "qwen3", "gemma", "gemma2",
    "gemma3-pattern", "phi3", "phi3-longrope", "seed-oss", "qwen3-moe", "granite-hybrid",
    "starcoder2", "glm4-moe-lite", "falcon-h1-gate-alone", "falcon-h1-norm-first",
    "starcoder2-plain", "arcee", "ernie4-5",
    "glm4-moe-lite-layers", "minimax-m2",
    "minicpm3-longrope", "bloom-untied-6-heads", "mpt", "hunyuan-alpha", "apertus-other-choices",
    "mamba2-biases", "llama4-chunks", "zamba2-biases", "llama4-yarn", "gemma4-keys-are-values",
    "bamba", "mixtral", "nemotron-h", "gemma4", "axk1",
}  # fmt: skip
ALL_VARIANTS = [pytest.param(name, marks=[pytest.mark.slow] * (name in LATER)) for name in VARIANTS]


def tokens_of(length: int, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 97, (rows, length))


def our_logits(model: Decoder, tokens: np.ndarray) -> np.ndarray:
    score = jax.jit(lambda given: model.score(given))
    return np.asarray(score(jnp.asarray(tokens)))


def their_model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def their_logits(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


@pytest.mark.parametrize("name", ALL_VARIANTS)
def test_logits_match_transformers(name: str, tmp_path: Path) -> None:
    """300 positions of a causal model are 300 prefixes; and saving gives the same model back."""
    family, overrides = VARIANTS[name]
    folder = write_tiny(tmp_path / "theirs", family, **overrides)
    tokens = tokens_of(300)
    expected = their_logits(their_model(folder), tokens)
    largest = np.abs(expected).max()
    assert largest > 1  # or the tolerance would say nothing

    model = load_model(folder)
    tolerance = max(TOLERANCE, RELATIVE_TOLERANCE * largest)
    assert np.abs(our_logits(model, tokens) - expected).max() < tolerance

    save_pretrained(model, tmp_path / "ours")
    np.testing.assert_array_equal(their_logits(their_model(tmp_path / "ours"), tokens), expected)
    assert load_model(tmp_path / "ours").config == model.config


@pytest.mark.parametrize(
    "family",
    [
        "gemma2",
        pytest.param("gpt2", marks=pytest.mark.slow),
        pytest.param("mistral", marks=pytest.mark.slow),
        pytest.param("mixtral", marks=pytest.mark.slow),
    ],
)
def test_lengths_and_rows(family: str, tmp_path: Path) -> None:
    """One token, two, and one more than the window of 16 holds."""
    folder = write_tiny(tmp_path, family)
    ours, theirs = load_model(folder), their_model(folder)
    for length in (1, 2, 17):
        tokens = tokens_of(length, rows=2)
        difference = our_logits(ours, tokens) - their_logits(theirs, tokens)
        assert np.abs(difference).max() < TOLERANCE, length


@pytest.mark.parametrize("head_dim", [8, 12, 64, 80, 96, 128])
def test_rotary_frequencies_are_rounded_as_in_torch(head_dim: int) -> None:
    """A last-place error would grow with the position, to 0.02 radians at position 100,000."""
    for theta in (1e4, 5e5, 1e6):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
        expected = (1.0 / theta**exponents).numpy()
        ours = inverse_frequencies(RopeConfig(theta=theta), head_dim, 1)
        np.testing.assert_array_max_ulp(ours, expected, maxulp=1)
        assert np.mean(ours != expected) < 0.05


def test_bfloat16_checkpoint(tmp_path: Path) -> None:
    """bfloat16 weights are kept by default, and are exact when they are widened."""
    folder = write_tiny(tmp_path, "qwen3", dtype="bfloat16")
    tokens = tokens_of(40)
    expected = their_logits(their_model(folder), tokens)
    kept, widened = load_model(folder), load_model(folder, dtype="float32")
    assert kept.embed.weight.dtype == jnp.bfloat16
    assert np.abs(our_logits(widened, tokens) - expected).max() < TOLERANCE
    error = np.abs(our_logits(kept, tokens) - expected).mean() / np.abs(expected).mean()
    assert error < 0.03


def test_gpt2_files_of_the_bare_model(tmp_path: Path) -> None:
    """The first releases have no prefix, and hold the causal mask of each layer."""
    folder = write_tiny(tmp_path, "gpt2")
    model = load_model(folder)
    stored = {name: np.array(one.read()) for name, one in open_checkpoint(folder).items()}
    old = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    old["h.0.attn.bias"] = np.tril(np.ones((1, 1, 512, 512), np.float32))
    old["h.1.attn.masked_bias"] = np.full((), -1e4, np.float32)
    declared = [(name, tensor.dtype, tensor.shape) for name, tensor in old.items()]
    write_file(folder / "model.safetensors", declared, old.values())
    tokens = tokens_of(20)
    np.testing.assert_array_equal(our_logits(load_model(folder), tokens), our_logits(model, tokens))


def test_embeddings_are_scaled_in_the_dtype_of_the_weights(tmp_path: Path) -> None:
    """Gemma was trained with the root of its hidden size rounded to bfloat16."""
    folder = write_tiny(tmp_path, "gemma2", dtype="bfloat16")
    model = load_model(folder)
    scaled = model.embedded(jnp.arange(97), jnp.arange(97))
    rounded = float(jnp.bfloat16(32**0.5))
    assert rounded != np.float32(32**0.5)
    expected = np.asarray(model.embed.weight[...], np.float32) * rounded
    np.testing.assert_array_equal(np.asarray(scaled), expected)
