"""Mapping rules for other libraries' parameter trees. Data.

Checkpoint names are Llama's and Qwen's, which most decoders share.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from jengine.errors import CheckpointError, nearest_name
from jengine.weights.map_to import MapTo, Rules

LAYER = "model.layers.{layer}."
# Collection names of flax.linen and flax.nnx: kinds of parameters within a module.
FLAX = {
    "kernel": MapTo("weight", inputs=1),
    "embedding": MapTo("weight"),
    "scale": MapTo("weight"),
    "weight": MapTo("weight"),
    "bias": MapTo("bias"),
}
# Path prefixes -> checkpoint prefixes; linen names the modules of a list layers_0, ...
FLAX_PATHS = {
    "{root:path}.layers_{layer}.{module:path}": "{root}.layers.{layer}.{module}",
    "layers_{layer}.{module:path}": "layers.{layer}.{module}",
    "{module:path}": "{module}",
}
# MaxText's module in a layer -> tensor name, and number of input axes.
MAXTEXT_LAYER = {
    "self_attention.query.kernel": ("self_attn.q_proj.weight", 1),
    "self_attention.key.kernel": ("self_attn.k_proj.weight", 1),
    "self_attention.value.kernel": ("self_attn.v_proj.weight", 1),
    "self_attention.out.kernel": ("self_attn.o_proj.weight", 2),
    "self_attention.query_norm.scale": ("self_attn.q_norm.weight", None),
    "self_attention.key_norm.scale": ("self_attn.k_norm.weight", None),
    "mlp.wi_0.kernel": ("mlp.gate_proj.weight", 1),
    "mlp.wi_1.kernel": ("mlp.up_proj.weight", 1),
    "mlp.wo.kernel": ("mlp.down_proj.weight", 1),
    "pre_self_attention_layer_norm.scale": ("input_layernorm.weight", None),
    "post_self_attention_layer_norm.scale": ("post_attention_layernorm.weight", None),
}
MAXTEXT = {
    "token_embedder.embedding": MapTo("model.embed_tokens.weight"),
    "decoder.decoder_norm.scale": MapTo("model.norm.weight"),
    "decoder.logits_dense.kernel": MapTo("lm_head.weight", inputs=1),
    **{
        f"decoder.layers.{module}": MapTo(LAYER + name, inputs=inputs, stacked=1)
        for module, (name, inputs) in MAXTEXT_LAYER.items()
    },
    **{
        f"decoder.layers_{{layer}}.{module}": MapTo(LAYER + name, inputs=inputs)
        for module, (name, inputs) in MAXTEXT_LAYER.items()
    },
}
# Levanter's Linear modules -> number of output axes, which come first.
LEVANTER_LAYER = {
    "self_attn.q_proj": 3,  # KV heads, query group, head_dim
    "self_attn.k_proj": 2,
    "self_attn.v_proj": 2,
    "self_attn.o_proj": 1,
    "self_attn.q_norm": None,
    "self_attn.k_norm": None,
    "mlp.gate_proj": 1,
    "mlp.up_proj": 1,
    "mlp.down_proj": 1,
    "input_layernorm": None,
    "post_attention_layernorm": None,
}
LEVANTER = {
    "embeddings.token_embeddings.weight": MapTo("model.embed_tokens.weight"),
    "transformer.norm.weight": MapTo("model.norm.weight"),
    "lm_head.weight": MapTo("lm_head.weight", outputs=1),
    **{
        f"transformer.layers.stacked.{module}.weight": MapTo(
            f"{LAYER}{module}.weight", outputs=outputs, stacked=0
        )
        for module, outputs in LEVANTER_LAYER.items()
    },
}


class TreeTable(NamedTuple):
    """A library's mapping rules, a path component that identifies its trees, and advice for
    errors."""

    rules: Rules
    sign: str
    advice: str


TABLES: Mapping[str, TreeTable] = {
    "flax": TreeTable(
        {
            f"{root}{path}.{kind}": MapTo(f"{name}.{to.name}", inputs=to.inputs)
            for root in ("params.", "")
            for path, name in FLAX_PATHS.items()
            for kind, to in FLAX.items()
        },
        "q_proj.kernel",
        "These look like names of flax.linen or flax.nnx: mapping='flax' reads modules that are "
        "called as in transformers.",
    ),
    "equinox": TreeTable(
        {"{path:path}": MapTo("{path}")},
        "q_proj.weight",
        "These look like Hugging Face names: pass them as they are to from_hf or update_params, "
        "in a dict with nothing before 'model.'; mapping='equinox' reads modules called so.",
    ),
    "maxtext": TreeTable(
        {
            root + path: to
            for root in ("params.params.", "params.", "")
            for path, to in MAXTEXT.items()
        },
        "self_attention.query.kernel",
        "These look like names of MaxText: mapping='maxtext' reads Qwen's layers. Its Llama scales "
        "queries and rotates neighbouring lanes, which needs a function.",
    ),
    "levanter": TreeTable(
        {f"{path}.{{leaf}}": to for path, to in LEVANTER.items()},
        "layers.stacked.",
        "These look like names of Levanter: mapping='levanter' reads them.",
    ),
}


ADVICE = (
    "Paths such as {!r} are neither those of llm.params nor Hugging Face names. mapping= says how "
    "they become such names: a dict of patterns to jengine.MapTo, or a function (path, array)."
)


def rules_of(library: str) -> Rules:
    """Rules of a library. Raises CheckpointError."""
    if library not in TABLES:
        raise CheckpointError(
            f"mapping={library!r}: expected one of {', '.join(TABLES)}, a dict of rules, or a "
            f"function.{nearest_name(library, list(TABLES))}"
        )
    return TABLES[library].rules


def hint(paths: list[str], known: Container[str] = ()) -> str:
    """Hint on what unmatched paths look like, on its own line; "" if some are `known`."""
    signs = (table for table in TABLES.values() if any(table.sign in path for path in paths))
    foreign = paths and not any(path in known for path in paths)
    other = f"\n{ADVICE.format(paths[-1])}" if foreign else ""
    return next((f"\n{table.advice}" for table in signs), other)
