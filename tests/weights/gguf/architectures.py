"""GGUF files of tiny models of many architectures, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jengine.weights.safetensors_file import read_header
from tests.models.tiny_models import write_tiny_native
from tests.weights.gguf.gguf_models import Files, plain, rope_base, turned, write_gguf

SLIDING = "sliding_attention"
# Family -> llama.cpp's name, and what its tiny model must have for a file to say it all.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mixtral": ("llama", {}),
    "lfm2": ("lfm2", {}),
    "llama4": ("llama4", {"floor_scale": 8192, "attn_scale": 0.1, "attention_chunk_size": 8192}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen2_moe": ("qwen2moe", {}),
    "qwen3_moe": ("qwen3moe", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 12}),
    "gemma3": (
        "gemma3",
        {
            "query_pre_attn_scalar": 12,
            "num_hidden_layers": 7,
            "layer_types": [SLIDING] * 5 + ["full_attention", SLIDING],
        },
    ),
    "phi": ("phi2", {}),
    "phi3": ("phi3", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo2", {}),
    "olmoe": ("olmoe", {}),
    "deepseek_v2": ("deepseek2", {}),
    "deepseek_v3": ("deepseek2", {}),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4moe", {}),
    "gpt_oss": ("gpt-oss", {}),
    "granite": ("granite", {}),
    "granite_moe": ("granitemoe", {}),
    "granite_moe_shared": ("granitemoe", {}),
    "smollm3": ("smollm3", {}),
    "arcee": ("arcee", {}),
    "ernie4_5": ("ernie4_5", {}),
    "seed_oss": ("seed_oss", {}),
    "exaone4": ("exaone4", {}),
    "cohere": ("command-r", {}),
    "cohere2": ("cohere2", {}),
    "nemotron": ("nemotron", {}),
    "starcoder2": ("starcoder2", {"sliding_window": 4096}),
    "stablelm": ("stablelm", {}),
    "hunyuan": ("hunyuan-dense", {}),
    "minimax_m2": ("minimax-m2", {}),
    "gpt2": ("gpt2", {}),
    "gpt_neox": ("gptneox", {}),
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {"attn_config": {"alibi_bias_max": 4}}),
}
TURNED = {"llama", "mixtral", "granite", "granite_moe", "granite_moe_shared", "smollm3", "arcee"}
MORE_BY_ONE = {"gemma", "gemma2", "gemma3", "nemotron"}  # weights of norms
# A checkpoint's modules, in layers without the layer's -> GGUF's, as gguf's own table has them.
MODULES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.final_layernorm": "output_norm",
    "lm_head": "output",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "gpt_neox.embed_in": "token_embd",
    "gpt_neox.final_layer_norm": "output_norm",
    "embed_out": "output",
    "transformer.word_embeddings": "token_embd",
    "transformer.word_embeddings_layernorm": "token_embd_norm",
    "transformer.norm_f": "output_norm",
    "norm_1": "attn_norm",
    "norm_2": "ffn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "ffn.up_proj": "ffn_up",
    "ffn.down_proj": "ffn_down",
    "attention.dense": "attn_output",
    "self_attention.dense": "attn_output",
    "mlp.dense_h_to_4h": "ffn_up",
    "mlp.dense_4h_to_h": "ffn_down",
    "ln_1": "attn_norm",
    "ln_2": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "post_self_attn_layernorm": "post_attention_norm",
    "post_mlp_layernorm": "post_ffw_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{
        f"{module}.{name}_proj": f"ffn_{name}_shexp"
        for module in ("mlp.shared_expert", "mlp.shared_experts", "feed_forward.shared_expert")
        for name in ("gate", "up", "down")
    },
    **{f"feed_forward.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    "feed_forward.router": "ffn_gate_inp",
    "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    **{f"conv.{name}": f"shortconv.{name}" for name in ("conv", "in_proj", "out_proj")},
    **{f"feed_forward.w{at}": f"ffn_{name}" for at, name in ((1, "gate"), (3, "up"), (2, "down"))},
    "shared_mlp.output_linear": "ffn_down_shexp",
}
# Where the norm between attention and MLP has the name of the one behind attention.
AFTER = {"gemma2", "gemma3", "olmo2", "olmo3", "exaone4", "gpt_oss", "glm4_moe", "seed_oss"}
EXPERTS = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up",
           "down_proj": "down"}  # fmt: skip
KEYS = {
    "num_hidden_layers": "block_count",
    "n_layer": "block_count",
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "seq_length": "context_length",
    "max_seq_len": "context_length",
    "n_layers": "block_count",
    "d_model": "embedding_length",
    "n_heads": "attention.head_count",
    "hidden_size": "embedding_length",
    "n_embd": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "n_inner": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "norm_epsilon": "attention.layer_norm_epsilon",
    "norm_eps": "attention.layer_norm_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
ROUTED = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "first_k_dense_replace": "leading_dense_block_count",
}
CHOSEN = {"num_experts": "expert_count", "num_local_experts": "expert_count",
          "num_experts_per_tok": "expert_used_count"}  # fmt: skip
GRANITE = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
ORIGINAL = "rope.scaling.original_context_length"
WINDOW = {"sliding_window": "attention.sliding_window"}
CAPS = {key: key for key in ("attn_logit_softcapping", "final_logit_softcapping")}
OWN_KEYS: dict[str, dict[str, str]] = {
    "mixtral": CHOSEN,
    "lfm2": {"conv_L_cache": "shortconv.l_cache", "norm_eps": "attention.layer_norm_rms_epsilon"},
    "llama4": {
        **CHOSEN,
        "intermediate_size": "expert_feed_forward_length",
        "intermediate_size_mlp": "feed_forward_length",
    },
    "qwen2_moe": {
        **CHOSEN,
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    },
    "qwen3_moe": {**CHOSEN, "moe_intermediate_size": "expert_feed_forward_length"},
    "gemma2": {**WINDOW, **CAPS},
    "gemma3": {**WINDOW, **CAPS},
    "phi3": WINDOW,
    "olmo3": WINDOW,
    "olmoe": CHOSEN,
    "deepseek_v2": {key: value for key, value in ROUTED.items() if key != "norm_topk_prob"},
    "deepseek_v3": ROUTED,
    "glm4_moe": ROUTED,
    "gpt_oss": {**CHOSEN, **WINDOW},
    "granite": GRANITE,
    "granite_moe": {**GRANITE, **CHOSEN},
    "granite_moe_shared": {
        **GRANITE, **CHOSEN, "shared_intermediate_size": "expert_shared_feed_forward_length",
    },
    "exaone4": WINDOW,
    "cohere": {"logit_scale": "logit_scale"},
    "cohere2": {**WINDOW, "logit_scale": "logit_scale"},
    "stablelm": {"use_parallel_residual": "use_parallel_residual"},
    "gpt_neox": {"use_parallel_residual": "use_parallel_residual"},
    "minimax_m2": CHOSEN,
}  # fmt: skip


def write_architecture(
    folder: Path,
    family: str,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    **more: Any,
) -> Files:
    """A tiny model as a folder and as a GGUF file of plain numbers, with more keys and tensors."""
    architecture, own = FAMILIES[family]
    settings = {key: value for key, value in {**own, **more}.items() if value is not None}
    written = write_tiny_native(folder / "plain", family, **settings)
    config = json.loads((written / "config.json").read_text())
    found = read_header(written / "model.safetensors")
    given = {name: np.array(tensor.read()) for name, tensor in found.items()}
    arrays = {**dict(converted(family, config, given)), **(tensors or {})}
    stored = {name: plain("F32", array) for name, array in arrays.items()}
    own_metadata = metadata_of(family, config)
    prefixed = {f"{architecture}.{key}": value for key, value in own_metadata.items()}
    tokens = {
        f"tokenizer.ggml.{role}_token_id": config[f"{role}_token_id"]
        for role in ("bos", "eos")
        if isinstance(config.get(f"{role}_token_id"), int)
    }
    tokens["tokenizer.ggml.tokens"] = [str(token) for token in range(config["vocab_size"])]
    out = folder / "model.gguf"
    keys = {"general.architecture": architecture, **prefixed, **tokens, **(metadata or {})}
    write_gguf(out, keys, stored)
    return Files(out, written)


def metadata_of(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the converter writes, without the architecture's name."""
    names = {**KEYS, **OWN_KEYS.get(family, {})}
    given = {names[key]: config[key] for key in names if config.get(key) is not None}
    heads = given["attention.head_count"]
    dim = config.get("head_dim") or given["embedding_length"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    partial = config.get("partial_rotary_factor") or rope.get("partial_rotary_factor")
    if family == "gpt_neox":
        given["rope.dimension_count"] = int(dim * config["rotary_pct"])
    elif family in ("bloom", "mpt"):
        given["feed_forward_length"] = 4 * given["embedding_length"]
        scores = config.get("attn_config", {})
        names = {"clip_qkv": "clamp_kqv", "alibi_bias_max": "max_alibi_bias"}
        given |= {f"attention.{names[key]}": float(scores[key]) for key in names if scores.get(key)}
    elif family != "gpt2":
        given |= {"rope.freq_base": rope_base(config), "attention.key_length": dim}
        given |= {"attention.value_length": dim, "rope.dimension_count": int(dim * (partial or 1))}
    if rope.get("rope_type") == "yarn":
        given |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
        given[ORIGINAL] = rope["original_max_position_embeddings"]
    if family == "lfm2":
        del given["attention.key_length"], given["attention.value_length"]
        counts = [given["attention.head_count_kv"] * (kind != "conv")
                  for kind in config["layer_types"]]  # fmt: skip
        given["attention.head_count_kv"] = np.asarray(counts, np.int32)
    if family == "llama4":
        given["interleave_moe_layer_step"] = config["moe_layers"][0] + 1
    if family in ("gpt_oss", "minimax_m2"):
        given["expert_feed_forward_length"] = given.pop("feed_forward_length")
    if "kv_lora_rank" in config:
        given |= latent_keys(family, config)
    if family in ("deepseek_v3", "glm4_moe", "minimax_m2"):
        given["expert_gating_func"] = 2
    return given


def latent_keys(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of latent attention: V2's file is an old one, V3's a new one."""
    rotated, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    key, value = config["qk_nope_head_dim"] + rotated, config["v_head_dim"]
    found = {"rope.dimension_count": rotated, "attention.kv_lora_rank": rank,
             "attention.q_lora_rank": config["q_lora_rank"], "attention.key_length": key,
             "attention.value_length": value}  # fmt: skip
    if family == "deepseek_v2":
        return found
    return {
        **found, "attention.key_length": rank + rotated, "attention.value_length": rank,
        "attention.key_length_mla": key, "attention.value_length_mla": value,
        "attention.head_count_kv": 1,
    }  # fmt: skip


def converted(
    family: str, config: Mapping[str, Any], given: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors as GGUF has them."""
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, array in given.items():
        if ".experts." in name and name.split(".experts.")[1][0].isdigit():
            before, after = name.split(".experts.")
            number, module, kind = after.split(".")
            layer = before.split(".")[2]
            own = f"blk.{layer}.ffn_{EXPERTS[module]}_exps.{kind}"
            experts.setdefault(own, {})[int(number)] = array
        else:
            yield from one(family, config, name, array)
    for name, arrays in experts.items():
        yield name, np.stack([arrays[number] for number in sorted(arrays)])


def one(
    family: str, config: Mapping[str, Any], name: str, array: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """What one tensor becomes."""
    module, kind = name, "weight"
    for ending in ("weight", "bias"):
        if name.endswith(f".{ending}"):
            module, kind = name.removesuffix(f".{ending}"), ending
    layer = ""
    if any(layers in module for layers in (".layers.", ".h.", ".blocks.")):
        _, _, number, module = module.split(".", 3)
        layer = f"blk.{number}."
    stacked = [*split(family, config, module, kind, array)]
    if stacked:
        yield from ((layer + own, found) for own, found in stacked)
        return
    if "e_score_correction_bias" in module:
        kind = "bias"
    own = MODULES[module]
    if family in AFTER and module == "post_attention_layernorm":
        own = "post_attention_norm"
    if family in TURNED and own in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if own == "attn_q" else "num_key_value_heads"]
        data = np.frombuffer(turned(array.tobytes(), len(array), heads), array.dtype)
        array = data.reshape(array.shape)
    if family in MORE_BY_ONE and kind == "weight" and own.endswith("norm"):
        array = array + 1
    if family == "gpt2" and array.ndim == 2 and own not in ("token_embd", "position_embd"):
        array = array.T
    if own == "shortconv.conv":
        array = array[:, 0]
    if own == "ffn_gate_inp_shexp":
        array = array[0]  # as older converters did
    yield f"{layer}{own}.{kind}", np.ascontiguousarray(array)


def split(
    family: str, config: Mapping[str, Any], module: str, kind: str, array: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Tensors that are several in GGUF files, or stand in another order."""
    if module.endswith("query_key_value"):
        heads = config.get("num_attention_heads") or config["n_head"]
        apart = array.reshape(heads, 3, -1, *array.shape[1:]).swapaxes(0, 1)
        yield f"attn_qkv.{kind}", apart.reshape(array.shape)
    if module.endswith("input_linear"):
        ending = "shexp" if module.startswith("shared_mlp") else "exps"
        for half, name in zip(np.split(array, 2, -2), ("gate", "up"), strict=True):
            yield f"ffn_{name}_{ending}.weight", half
    if module == "block_sparse_moe.output_linear":
        yield "ffn_down_exps.weight", array
    if module.startswith("mlp.experts.gate_up_proj"):
        kind = "bias" if module.endswith("_bias") else "weight"
        for at, name in enumerate(("gate", "up")):
            half = array[..., at::2]
            yield f"ffn_{name}_exps.{kind}", half if kind == "bias" else half.swapaxes(1, 2)
    if module == "feed_forward.experts.gate_up_proj":
        for half, name in zip(np.split(array, 2, -1), ("gate", "up"), strict=True):
            yield f"ffn_{name}_exps.weight", half.swapaxes(1, 2)
    if module == "feed_forward.experts.down_proj":
        yield "ffn_down_exps.weight", array.swapaxes(1, 2)
    if module.startswith("mlp.experts.down_proj"):
        kind = "bias" if module.endswith("_bias") else "weight"
        yield f"ffn_down_exps.{kind}", array if kind == "bias" else array.swapaxes(1, 2)
    if family == "deepseek_v3" and module == "self_attn.kv_b_proj":
        nope, heads = config["qk_nope_head_dim"], config["num_attention_heads"]
        both = array.reshape(heads, -1, array.shape[-1])
        yield "attn_k_b.weight", both[:, :nope].swapaxes(1, 2)
        yield "attn_v_b.weight", both[:, nope:]
