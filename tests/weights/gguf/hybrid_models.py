"""GGUF files of hybrids of transformers, as llama.cpp's converter changes their tensors.

Names of tensors and of metadata are those of the package `gguf`, which llama.cpp's converter uses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.weights.safetensors_file import read_header
from tests.models.tiny_models import write_tiny
from tests.weights.gguf.gguf_models import Files, rope_base, turned

Config = Mapping[str, Any]
Named = tuple[str, np.ndarray]
# Family -> llama.cpp's name.
HYBRIDS = {
    "mamba2": "mamba2",
    "falcon_h1": "falcon-h1",
    "granite_hybrid": "granitehybrid",
    "granite_hybrid without experts": "granitehybrid",
    "bamba": "granitehybrid",
    "nemotron_h": "nemotron_h",
    "qwen3_next": "qwen3next",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "gemma4": "gemma4",
    "gemma4 with keys as values": "gemma4",
}
MORE: dict[str, dict[str, Any]] = {
    "granite_hybrid without experts": {"num_local_experts": 0, "shared_intermediate_size": 48},
    "qwen3_next": {
        "num_hidden_layers": 4, "layer_types": None, "norm_topk_prob": True,
    },
    "qwen3_5": {"num_hidden_layers": 4, "layer_types": None},
    "qwen3_5_moe": {"num_hidden_layers": 4, "layer_types": None},
    "gemma4 with keys as values": {
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
    },
    "falcon_h1": {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
}  # fmt: skip
UNROTATED = 2**20  # the context of models without positions


def write_hybrid(
    folder: Path,
    family: str,
    write: Callable[..., Path] = write_tiny,
    change: Callable[[Any], None] = lambda writer: None,
    tensors: Mapping[str, np.ndarray] | None = None,
) -> Files:
    """A tiny model, and the file that the converter would make of it, with these changes."""
    gguf = pytest.importorskip("gguf")
    architecture, more = HYBRIDS[family], MORE.get(family, {})
    family = family.partition(" ")[0]
    written = write(folder / "plain", family, **more)
    config = json.loads((written / "config.json").read_text())
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    write_metadata(writer, family, config)
    change(writer)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(kinds[architecture], 8)
    for name, given in stacked(written).items():
        for own, array in converted(family, config, name, given):
            known = table.get_name(own, (".weight", ".bias")) or own
            assert known.startswith(("blk.", "token_embd", "output", "per_layer")), name
            array = (tensors or {}).get(known, array)
            writer.add_tensor(known, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Files(folder / "model.gguf", written)


def stacked(folder: Path) -> dict[str, np.ndarray]:
    """A folder's tensors, with those of experts in one."""
    found: dict[str, np.ndarray] = {}
    experts: dict[str, list[np.ndarray]] = {}
    header = read_header(folder / "model.safetensors")
    for name in sorted(header, key=lambda one: (len(one), one)):  # experts in order
        array = np.array(header[name].read(), np.float32)
        before, _, after = name.partition(".experts.")
        number, _, own = after.partition(".")
        if number.isdigit():
            experts.setdefault(f"{before}.experts.{own}", []).append(array)
        else:
            found[name] = array
    return found | {name: np.stack(arrays) for name, arrays in experts.items()}


def write_metadata(writer: Any, family: str, config: Config) -> None:
    """What the converter writes of a config.json."""
    layers, hidden = len(config.get("layers_block_type") or ()), config["hidden_size"]
    rope, heads = config.get("rope_parameters") or {}, config.get("num_attention_heads", 0)
    writer.add_context_length(config.get("max_position_embeddings", UNROTATED))
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers or config["num_hidden_layers"])
    writer.add_head_count(heads)
    eps = config.get("rms_norm_eps") or config["layer_norm_epsilon"]
    writer.add_layer_norm_rms_eps(eps)
    writer.add_token_list([str(token) for token in range(config["vocab_size"])])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    if family not in ("nemotron_h", "gemma4"):
        writer.add_feed_forward_length(config.get("intermediate_size") or 0)
    if heads:
        writer.add_rope_freq_base(rope_base(config))
    METADATA[family](writer, config, rope)


def mamba_keys(writer: Any, prefix: str, config: Config) -> None:
    """Sizes under the keys of Bamba and its like, or of Mamba-2."""
    names = {"kernel": "d_conv", "state": "d_state", "heads": "n_heads", "groups": "n_groups"}
    if not prefix:
        names = {"kernel": "conv_kernel", "state": "state_size", "heads": "num_heads",
                 "groups": "n_groups"}  # fmt: skip
    width = config["expand" if not prefix else "mamba_expand"] * config["hidden_size"]
    writer.add_ssm_conv_kernel(config[prefix + names["kernel"]])
    writer.add_ssm_state_size(config[prefix + names["state"]])
    writer.add_ssm_group_count(config[prefix + names["groups"]])
    writer.add_ssm_time_step_rank(config[prefix + names["heads"]])
    writer.add_ssm_inner_size(config.get("mamba_d_ssm") or width)


def of_mamba2(writer: Any, config: Config, rope: Config) -> None:
    mamba_keys(writer, "", config)


def of_falcon(writer: Any, config: Config, rope: Config) -> None:
    mamba_keys(writer, "mamba_", config)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(dim)
    writer.add_value_length(dim)


def of_granite(writer: Any, config: Config, rope: Config) -> None:
    mamba_keys(writer, "mamba_", config)
    full = [kind in ("attention", "full_attention") for kind in config["layer_types"]]
    writer.add_head_count_kv([config["num_key_value_heads"] * one for one in full])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    if config["num_local_experts"]:
        writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_rope_scaling_finetuned(False)


def of_bamba(writer: Any, config: Config, rope: Config) -> None:
    mamba_keys(writer, "mamba_", config)
    full = config["attn_layer_indices"]
    kv = config["num_key_value_heads"]
    writer.add_head_count_kv([kv * (at in full) for at in range(config["num_hidden_layers"])])
    dim = config["hidden_size"] // config["num_attention_heads"]
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.5))
    writer.add_rope_dimension_count(int(dim * share))
    writer.add_rope_scaling_finetuned(True)


def of_nemotron(writer: Any, config: Config, rope: Config) -> None:
    kinds, kv = config["layers_block_type"], config["num_key_value_heads"]
    full = [kind in ("attention", "full_attention") for kind in kinds]
    writer.add_head_count_kv([kv * one for one in full])
    width = config["intermediate_size"]
    writer.add_feed_forward_length([width * (kind == "mlp") for kind in kinds])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    # Made of the hidden size, whatever the heads' is: they are not rotated.
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_rope_scaling_finetuned(False)
    writer.add_ssm_conv_kernel(config["conv_kernel"])
    writer.add_ssm_state_size(config["ssm_state_size"])
    writer.add_ssm_group_count(config["n_groups"])
    writer.add_ssm_time_step_rank(config["mamba_num_heads"])
    writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])


def of_qwen3_next(writer: Any, config: Config, rope: Config) -> None:
    writer.add_head_count_kv(config["num_key_value_heads"])
    dim, values = config["head_dim"], config["linear_num_value_heads"]
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.25))
    writer.add_rope_dimension_count(int(dim * share))
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(values)
    writer.add_ssm_inner_size(values * config["linear_value_head_dim"])
    writer.add_full_attention_interval(4)


def of_qwen3_5(writer: Any, config: Config, rope: Config) -> None:
    of_qwen3_next(writer, config, rope)
    writer.add_rope_dimension_sections([11, 11, 10, 0])


def of_gemma4(writer: Any, config: Config, rope: Config) -> None:
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    # transformers 5 writes what layers without a window have of their own by layer.
    own = next(iter((config.get("per_layer_config") or {}).values()), {})
    shared, full = (
        config["num_kv_shared_layers"],
        config.get("global_head_dim", own.get("head_dim")),
    )
    writer.add_sliding_window_pattern(slides)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    for ending, dim in (("", full), ("_swa", config["head_dim"])):
        getattr(writer, f"add_key_length{ending}")(dim)
        getattr(writer, f"add_value_length{ending}")(dim)
        getattr(writer, f"add_rope_dimension_count{ending}")(dim)
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    width, count = config["intermediate_size"], len(slides)
    writer.add_feed_forward_length(
        [width * (1 + (layer >= count - shared)) for layer in range(count)] if shared else width
    )
    kv = config["num_key_value_heads"]
    of_full = config.get("num_global_key_value_heads", own.get("num_key_value_heads"))
    writer.add_head_count_kv([kv if one else of_full for one in slides] if of_full else kv)
    rotated = int(full * rope["full_attention"]["partial_rotary_factor"] / 2)
    factors = [1.0] * rotated + [1e30] * (full // 2 - rotated)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


METADATA: dict[str, Callable[[Any, Config, Config], None]] = {
    "mamba2": of_mamba2,
    "falcon_h1": of_falcon,
    "granite_hybrid": of_granite,
    "bamba": of_bamba,
    "nemotron_h": of_nemotron,
    "qwen3_next": of_qwen3_next,
    "qwen3_5": of_qwen3_5,
    "qwen3_5_moe": of_qwen3_5,
    "gemma4": of_gemma4,
}
TURNED = {"granite_hybrid", "bamba", "nemotron_h"}


def converted(family: str, config: Config, name: str, array: np.ndarray) -> Iterator[Named]:
    """What one tensor becomes, under names that gguf's table knows."""
    if family == "falcon_h1":
        array = multiplied(config, name, array)
    if name.endswith(".A_log"):
        array = -np.exp(array)
    if name.endswith(".conv1d.weight"):
        array = array[:, 0]
    is_delta = family in ("qwen3_next", "qwen3_5", "qwen3_5_moe")
    if name.endswith("norm.weight") and is_delta and "linear_attn.norm" not in name:
        array = array + 1
    if family.startswith("qwen3_5"):
        array = tiled(config, name, array)
    if not is_delta:
        if name.endswith((".A_log", ".D")):
            array = array[:, None]
        if name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
            groups = config.get("n_groups") or config["mamba_n_groups"]
            array = array.reshape(groups, -1)
    if family in TURNED and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        data = np.frombuffer(turned(array.tobytes(), len(array), heads), array.dtype)
        array = data.reshape(array.shape)
    apart = [*taken_apart(config, name, array)]
    changed = name.replace(".dt_bias", ".dt_proj.bias")
    changed = changed.replace("layer_scalar", "layer_scalar.weight")
    yield from apart or [(changed, array)]


def tiled(config: Config, name: str, array: np.ndarray) -> np.ndarray:
    """Qwen3.5's value heads: the first of every key head, then the second of every."""
    heads = config["linear_num_key_heads"]
    share = config["linear_num_value_heads"] // heads
    keys, dim = heads * config["linear_key_head_dim"], config["linear_value_head_dim"]

    def rows(part: np.ndarray, width: int) -> np.ndarray:
        apart = part.reshape(heads, share, width, *part.shape[1:]).swapaxes(0, 1)
        return apart.reshape(part.shape)

    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        return np.concatenate([array[: 2 * keys], rows(array[2 * keys :], dim)])
    if name.endswith("in_proj_z.weight"):
        return rows(array, dim)
    if name.endswith("linear_attn.out_proj.weight"):
        return rows(array.T, dim).T
    single = ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")
    return rows(array, 1) if name.endswith(single) else array


def taken_apart(config: Config, name: str, array: np.ndarray) -> Iterator[Named]:
    """Tensors that are several in GGUF files."""
    layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
    if name.endswith("input_linear.weight"):
        ending = "_exps" if "sparse" in name else "_shexp" * bool(config["num_local_experts"])
        for half, own in zip(np.split(array, 2, -2), ("gate", "up"), strict=True):
            yield f"{layer}ffn_{own}{ending}.weight", half
    if name.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
        yield f"{layer}ffn_down.weight", array
    if name.endswith("mlp.experts.gate_up_proj"):
        for half, own in zip(np.split(array, 2, -2), ("gate", "up"), strict=True):
            yield f"{layer}ffn_{own}_exps.weight", half
    if name.endswith("mlp.experts.down_proj"):
        yield f"{layer}ffn_down_exps.weight", array
    if name.endswith("in_proj_qkvz.weight"):
        heads = config["linear_num_key_heads"]
        share = config["linear_num_value_heads"] // heads
        keys, values = config["linear_key_head_dim"], share * config["linear_value_head_dim"]
        by_head = array.reshape(heads, -1, array.shape[-1])
        parts = np.split(by_head, np.cumsum([keys, keys, values]), 1)
        flat = [part.reshape(-1, array.shape[-1]) for part in parts]
        yield f"{layer}attn_qkv.weight", np.concatenate(flat[:3])
        yield f"{layer}attn_gate.weight", flat[3]


def multiplied(config: Config, name: str, array: np.ndarray) -> np.ndarray:
    """Falcon-H1's weights with its multipliers in them."""
    factors = {
        "feed_forward.down_proj": config["mlp_multipliers"][1],
        "feed_forward.gate_proj": config["mlp_multipliers"][0],
        "k_proj": config["key_multiplier"] * config["attention_in_multiplier"],
        "q_proj": config["attention_in_multiplier"],
        "v_proj": config["attention_in_multiplier"],
        "o_proj": config["attention_out_multiplier"],
        "mamba.out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    module = name.removesuffix(".weight")
    for ending, factor in factors.items():
        if module.endswith(ending):
            return array * np.float32(factor)
    if module.endswith("mamba.in_proj"):
        width, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [width, width, state, state, config["mamba_n_heads"]]
        rows = np.repeat(np.float32(config["ssm_multipliers"]), sizes)
        return array * np.float32(config["ssm_in_multiplier"]) * rows[:, None]
    return array
