"""Derives config.json from a GGUF file's metadata.

In: a header. Out: config.json's contents as a mapping. Must not know block formats.
"""

from __future__ import annotations

from typing import Any

from jengine.weights.gguf.architectures import COMMON, PATTERN, REQUIRED
from jengine.weights.gguf.header import GgufHeader
from jengine.weights.gguf.metadata import Metadata
from jengine.weights.gguf.rope import rope_scaling, rotated_share

PLAIN_TYPES = {"F32": "float32", "F16": "float16"}
EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
MOST_LAYERS = 1000  # families refuse more
TYPES = "token_types.weight"
# config.json flags -> tensors; true if a layer has one of these.
PRESENT = {
    "attention_bias": ("attn_q.bias", "attn_qkv.bias"),
    "qkv_bias": ("attn_q.bias",),
    "use_qkv_bias": ("attn_q.bias",),
    "use_bias": ("attn_q.bias", "ssm_in.bias"),
    "attention_out_bias": ("attn_output.bias",),
    "mlp_bias": ("ffn_up.bias",),
    "conv_bias": ("shortconv.in_proj.bias",),
    "use_conv_bias": ("ssm_conv1d.bias",),
    "mamba_conv_bias": ("ssm_conv1d.bias",),
    "mamba_proj_bias": ("ssm_in.bias",),
    "projectors_bias": ("ssm_in.bias",),
    "mamba_rms_norm": ("ssm_norm.weight",),
    "use_qk_norm": ("attn_q_norm.weight",),
    "qk_layernorm": ("attn_q_norm.weight",),
}


def config_of(header: GgufHeader) -> dict[str, object]:
    """Contents of config.json."""
    fields = Metadata(header)
    own = fields.architecture
    if fields.get("attention.causal") not in (None, not own.sees_ahead):
        raise fields.refuse("attention.causal", f"{not own.sees_ahead}: no others are built")
    drafting = fields.number("nextn_predict_layers", 0)
    config: dict[str, Any] = {
        "architectures": [own.hf],
        "model_type": own.model_type,
        "vocab_size": fields.matrix_shape("token_embd.weight")[0],
        "num_hidden_layers": fields.number("block_count") - drafting,
        "num_nextn_predict_layers": drafting,
        own.eps: _eps(fields),
        "tie_word_embeddings": not fields.has("output.weight"),
        "torch_dtype": _dtype(header),
        **_present(header),
        "bos_token_id": header.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.metadata.get("tokenizer.ggml.eos_token_id"),
        **own.fixed,
    }
    if fields.has(TYPES):
        config["type_vocab_size"] = fields.matrix_shape(TYPES)[0]
    if own.headless is not None:
        config |= _headless_layers(fields, own.headless, config["num_hidden_layers"])
    config |= _shares(fields)
    if own.by_kind:
        config |= heads_by_kind(fields)
    for key, name in {**COMMON, **own.keys}.items():
        if name in config:
            fields.read.add(key)
            continue
        found = fields.get(key)
        if found is not None or key in REQUIRED:
            config[name] = fields.number(key) if not isinstance(found, bool) else found
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    if own.has_heads and not own.by_kind:
        config |= _heads(fields, config)
    config |= _experts(fields, config)
    config |= _windows(fields, config)
    scaling = rope_scaling(fields, config)
    if scaling is not None:
        config["rope_scaling"] = {**scaling, **own.rope}
    fields.refuse_unread()
    for name in own.needed:
        fields.matrix_shape(name)
    return _in_parts({own.renamed.get(key, key): value for key, value in config.items()})


def _in_parts(config: dict[str, Any]) -> dict[str, object]:
    """Nest keys that contain a dot into objects."""
    found: dict[str, Any] = {key: value for key, value in config.items() if "." not in key}
    for key in config.keys() - found.keys():
        part, name = key.split(".")
        found.setdefault(part, {})[name] = config[key]
    return found


def _present(header: GgufHeader) -> dict[str, bool]:
    """Flags that follow from the presence of tensors."""
    inside = {name.split(".", 2)[-1] for name in header.tensors if name.startswith("blk.")}
    return {key: not inside.isdisjoint(tensors) for key, tensors in PRESENT.items()}


def _eps(fields: Metadata) -> Any:
    """Norm epsilon, of RMS or layer norms."""
    rms, plain = (fields.get(key) for key in EPS)
    return fields.number(EPS[0 if plain is None or rms is not None else 1])


def _dtype(header: GgufHeader) -> str:
    """Dtype of all matrices if float32 or float16, else bfloat16."""
    kinds = {one.type.name for one in header.tensors.values() if len(one.shape) > 1}
    return PLAIN_TYPES.get(kinds.pop(), "bfloat16") if len(kinds) == 1 else "bfloat16"


def _heads(fields: Metadata, config: dict[str, Any]) -> dict[str, object]:
    """Head counts and sizes, of plain or latent attention."""
    heads, hidden = (fields.number(key) for key in ("attention.head_count", "embedding_length"))
    if heads < 1:
        raise fields.refuse("attention.head_count", "at least 1")
    if fields.number("attention.kv_lora_rank", 0):
        return _latent_heads(fields, heads)
    dim = fields.number("attention.key_length", hidden // heads)
    if fields.number("attention.value_length", dim) != dim:
        raise fields.refuse("attention.value_length", f"the {dim} of attention.key_length")
    found: dict[str, object] = {"head_dim": dim}
    rotated = fields.number("rope.dimension_count", dim)
    if not fields.architecture.is_rotated:
        return found
    if fields.architecture.partial and dim:
        found["partial_rotary_factor"] = rotated / dim
    elif rotated != dim:
        raise fields.refuse("rope.dimension_count", f"the {dim} of a head")
    if fields.architecture.mean_heads_at is not None:
        is_mean = config["num_hidden_layers"] == fields.architecture.mean_heads_at
        found["query_pre_attn_scalar"] = hidden // heads if is_mean else dim
    return found


def _headless_layers(fields: Metadata, name: str, layers: int) -> dict[str, object]:
    """Keys of hybrids: KV heads of attention layers, and layer types; a layer with 0 KV heads has
    type `name`."""
    counts = fields.each(KV_HEADS) or [fields.number(KV_HEADS)] * min(layers, MOST_LAYERS)
    if len({*counts} - {0}) != 1:
        raise fields.refuse(KV_HEADS, "one number above zero, and zeros for other layers")
    kinds = ["full_attention" if count else name for count in counts]
    found: dict[str, object] = {"num_key_value_heads": max(counts)}
    if fields.architecture.halves:
        widths = fields.each(WIDTH) or [0]
        if len({*widths} - {0}) != 1 or len(widths) != len(kinds):
            raise fields.refuse(WIDTH, "one number above zero for MLPs, and zeros for other layers")
        both = zip(kinds, widths, strict=True)
        return {
            **found,
            "intermediate_size": max(widths),
            "layers_block_type": ["mlp" if width else kind for kind, width in both],
        }
    full = [layer for layer, count in enumerate(counts) if count]
    return {**found, "layer_types": kinds, "attn_layer_indices": full}


def _shares(fields: Metadata) -> dict[str, object]:
    """Sizes of recurrent layers derived from ssm.inner_size."""
    found: dict[str, object] = {}
    for name, key in fields.architecture.shares.items():
        width, parts = fields.number("ssm.inner_size"), fields.number(key)
        if parts < 1 or width % parts:
            raise fields.refuse("ssm.inner_size", f"a multiple of {key} ({parts})")
        found[name] = width // parts
    return found


def _latent_heads(fields: Metadata, heads: int) -> dict[str, object]:
    """Sizes of latent attention; newer files describe the cached entry as a single KV head."""
    rotated = fields.number("rope.dimension_count")
    key, value = (
        fields.number(f"attention.{name}_length_mla", fields.number(f"attention.{name}_length", 0))
        for name in ("key", "value")
    )
    return {
        "num_key_value_heads": heads,
        "kv_lora_rank": fields.number("attention.kv_lora_rank"),
        "q_lora_rank": fields.number("attention.q_lora_rank", 0) or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
    }


def _experts(fields: Metadata, config: dict[str, Any]) -> dict[str, object]:
    """Expert routing settings."""
    gate = fields.get("expert_gating_func")
    if gate not in (None, 0, fields.architecture.gate):
        raise fields.refuse("expert_gating_func", str(fields.architecture.gate))
    method = fields.architecture.grouped
    grouped = method is not None and (config.get("n_group") or 1) > 1
    return {"topk_method": method} if grouped else {}


def _windows(fields: Metadata, config: dict[str, Any]) -> dict[str, object]:
    """Sliding-window layers: every layer except each n-th, or as listed."""
    found: dict[str, object] = {}
    if PATTERN in fields.architecture.keys:  # the family derives layers from the pattern
        return found
    if config.get("sliding_window") == 0:
        found["sliding_window"] = None
    layers, sliding = config["num_hidden_layers"], fields.each(PATTERN)
    if sliding is None:
        if fields.get(PATTERN) is None:
            return found
        every = max(int(fields.number(PATTERN)), 1)
        sliding = [bool((layer + 1) % every) for layer in range(min(layers, MOST_LAYERS))]
    names = ("full_attention", "sliding_attention")
    return {**found, "layer_types": [names[one] for one in sliding[:layers]]}


KV_HEADS, WIDTH = "attention.head_count_kv", "feed_forward_length"
INPUTS = "per_layer_token_embd.weight"


def heads_by_kind(fields: Metadata) -> dict[str, Any]:
    """Gemma 4: heads, RoPE and MLP widths of full and sliding-window layers."""
    slides = [bool(one) for one in fields.each(PATTERN) or ()]
    if not slides or slides[-1]:
        raise fields.refuse(PATTERN, "a list of flags for all layers, false for the last one")
    full, own = (_head_dim(fields, ending) for ending in ("", "_swa"))
    widths = fields.each(WIDTH) or [fields.number(WIDTH)]
    first = slides.index(False)
    found: dict[str, Any] = {
        "global_head_dim": full,
        "head_dim": own,
        "num_global_key_value_heads": _kv_heads(fields, slides, False),
        "num_key_value_heads": _kv_heads(fields, slides, True),
        "attention_k_eq_v": not fields.has(f"blk.{first}.attn_v.weight"),
        "intermediate_size": min(widths),
        "use_double_wide_mlp": max(widths) > min(widths),
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": rotated_share(fields),
                "rope_theta": fields.number("rope.freq_base"),
            },
            "sliding_attention": {"rope_theta": fields.number("rope.freq_base_swa", 10000.0)},
        },
    }
    if fields.has(INPUTS):
        found["vocab_size_per_layer_input"] = fields.matrix_shape(INPUTS)[0]
    return found


def _head_dim(fields: Metadata, ending: str) -> int:
    dim = fields.number(f"attention.key_length{ending}")
    for key in (f"attention.value_length{ending}", f"rope.dimension_count{ending}"):
        if fields.number(key, dim) != dim:
            raise fields.refuse(key, f"the {dim} of attention.key_length{ending}")
    return dim


def _kv_heads(fields: Metadata, slides: list[bool], sliding: bool) -> int:
    """KV heads of the sliding-window or of the full-attention layers."""
    counts = fields.each(KV_HEADS) or [fields.number(KV_HEADS)] * len(slides)
    found = {count for count, one in zip(counts, slides, strict=False) if one is sliding}
    if len(found) > 1:
        raise fields.refuse(KV_HEADS, "one number for layers with a window, one for the others")
    return found.pop() if found else max(counts)
