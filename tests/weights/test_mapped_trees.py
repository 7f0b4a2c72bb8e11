"""Trees of other libraries become this model's parameters, by tables, rules or a function."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jengine import MapTo, from_hf
from jengine.errors import CheckpointError, ConfigError
from jengine.models import registry
from jengine.weights.abstract import abstract_model
from jengine.weights.live import fitting_arrays

WIDTH, HEADS, KV, HEAD, MLP, LAYERS, VOCAB = 32, 4, 2, 8, 48, 2, 40
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "vocab_size": VOCAB, "hidden_size": WIDTH,
    "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": KV, "head_dim": HEAD, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "dtype": "float32",
}  # fmt: skip
LINEAR = {  # [outputs, inputs]
    "self_attn.q_proj": (HEADS * HEAD, WIDTH),
    "self_attn.k_proj": (KV * HEAD, WIDTH),
    "self_attn.v_proj": (KV * HEAD, WIDTH),
    "self_attn.o_proj": (WIDTH, HEADS * HEAD),
    "mlp.gate_proj": (MLP, WIDTH),
    "mlp.up_proj": (MLP, WIDTH),
    "mlp.down_proj": (WIDTH, MLP),
}
NORMS = {
    "input_layernorm": WIDTH,
    "post_attention_layernorm": WIDTH,
    "self_attn.q_norm": HEAD,
    "self_attn.k_norm": HEAD,
}


@lru_cache(maxsize=1)
def tensors() -> dict[str, np.ndarray]:
    """A small model's tensors under Hugging Face names, all different."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCAB, WIDTH),
    }
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{k}.weight": v for k, v in LINEAR.items()}
        shapes |= {f"model.layers.{layer}.{k}.weight": (v,) for k, v in NORMS.items()}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as dicts in dicts."""
    tree: dict[str, Any] = {}
    for name, one in flat.items():
        *outer, last = name.split(".")
        node = tree
        for part in outer:
            node = node.setdefault(part, {})
        node[last] = one
    return tree


def assert_reads(tree: Any, mapping: Any) -> None:
    """The tree makes the very parameters that the tensors make."""
    expected = dict(nnx.to_flat_state(nnx.state(from_hf(tensors(), CONFIG))))
    found = dict(nnx.to_flat_state(nnx.state(from_hf(tree, CONFIG, mapping=mapping))))
    assert found.keys() == expected.keys()
    for path, one in found.items():
        np.testing.assert_array_equal(one[...], expected[path][...])


def filled(params: Mapping[str, Any], name_of: Any) -> dict[str, Any]:
    """A module's own tree of shapes with the tensors in it, as its library lays them out."""
    leaves, tree = jax.tree.flatten_with_path(params)
    made = []
    for path, leaf in leaves:
        *module, kind = (str(key.key) for key in path)
        given = tensors()[name_of(".".join(module)) + ".weight"]
        made.append(given.T if kind == "kernel" else given)
        assert made[-1].shape == leaf.shape
    return jax.tree.unflatten(tree, made)


class LinenBlock(nn.Module):
    """The modules of one layer, called as in transformers; their order does not matter here."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for name, (outputs, inputs) in LINEAR.items():
            nn.Dense(outputs, use_bias=False, name=name.replace(".", "__"))(jnp.zeros(inputs))
        for name, width in NORMS.items():
            nn.RMSNorm(name=name.replace(".", "__"))(jnp.zeros(width))
        return x


class LinenModel(nn.Module):
    def setup(self) -> None:
        self.embed_tokens = nn.Embed(VOCAB, WIDTH)
        self.layers = [LinenBlock() for _ in range(LAYERS)]
        self.norm = nn.RMSNorm()
        self.lm_head = nn.Dense(VOCAB, use_bias=False)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def test_flax_linen() -> None:
    shapes = jax.eval_shape(LinenModel().init, jax.random.key(0), jnp.zeros(3, jnp.int32))

    def name_of(module: str) -> str:
        name = module.removeprefix("params.").replace("layers_", "layers.").replace("__", ".")
        return name if name == "lm_head" else f"model.{name}"

    tree = filled(shapes, name_of)
    assert "layers_1" in tree["params"] and "kernel" in tree["params"]["lm_head"]
    # Submodules with a dot in their name do not exist; nested ones stand for it.
    for layer in range(LAYERS):
        block = tree["params"][f"layers_{layer}"]
        own = nested({name.replace("__", "."): one for name, one in block.items()})
        tree["params"][f"layers_{layer}"] = own
    head = tree["params"].pop("lm_head")
    assert_reads({"params": {"model": tree["params"], "lm_head": head}}, "flax")


class NnxLayer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.self_attn, self.mlp = nnx.Dict({}), nnx.Dict({})
        for name, (outputs, inputs) in LINEAR.items():
            room, module = name.split(".")
            linear = nnx.Linear(inputs, outputs, use_bias=False, rngs=rngs)
            getattr(self, room)[module] = linear
        for name, width in NORMS.items():
            norm = nnx.RMSNorm(width, rngs=rngs)
            if "." in name:
                self.self_attn[name.split(".")[1]] = norm
            else:
                setattr(self, name, norm)


class NnxModel(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.model = nnx.Dict({
            "embed_tokens": nnx.Embed(VOCAB, WIDTH, rngs=rngs),
            "layers": nnx.List([NnxLayer(rngs) for _ in range(LAYERS)]),
            "norm": nnx.RMSNorm(WIDTH, rngs=rngs),
        })  # fmt: skip
        self.lm_head = nnx.Linear(WIDTH, VOCAB, use_bias=False, rngs=rngs)


def test_flax_nnx() -> None:
    model = NnxModel(nnx.Rngs(0))
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        *module, kind = map(str, path)
        given = tensors()[".".join(module) + ".weight"]
        variable[...] = jnp.asarray(given.T if kind == "kernel" else given)
    assert_reads(model, "flax")
    assert_reads(nnx.state(model), "flax")


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        self_attn: dict[str, Any]
        mlp: dict[str, Any]
        input_layernorm: Any
        post_attention_layernorm: Any
        activation: Any = jax.nn.silu

    class Body(eqx.Module):
        embed_tokens: Any
        layers: list[Layer]
        norm: Any

    class Model(eqx.Module):
        model: Body
        lm_head: Any

    def linear(name: str) -> Any:
        weight = tensors()[f"{name}.weight"]
        made = eqx.nn.Linear(weight.shape[1], weight.shape[0], False, key=jax.random.key(0))
        return eqx.tree_at(lambda one: one.weight, made, jnp.asarray(weight))

    def norm(name: str) -> Any:
        weight = jnp.asarray(tensors()[f"{name}.weight"])
        made = eqx.nn.RMSNorm(len(weight), use_bias=False)
        return eqx.tree_at(lambda one: one.weight, made, weight)

    def layer(number: int) -> Layer:
        own = f"model.layers.{number}."
        attention = {one: linear(f"{own}self_attn.{one}_proj") for one in "qkvo"}
        named = {f"{one}_proj": module for one, module in attention.items()}
        norms = {one: norm(f"{own}self_attn.{one}") for one in ("q_norm", "k_norm")}
        mlp = {one: linear(f"{own}mlp.{one}") for one in ("gate_proj", "up_proj", "down_proj")}
        names = ("input_layernorm", "post_attention_layernorm")
        return Layer({**named, **norms}, mlp, *(norm(own + one) for one in names))

    embed = eqx.nn.Embedding(weight=jnp.asarray(tensors()["model.embed_tokens.weight"]))
    body = Body(embed, [layer(number) for number in range(LAYERS)], norm("model.norm"))
    model = Model(body, linear("lm_head"))
    assert_reads(model, "equinox")
    with pytest.raises(ConfigError, match="mapping='equinox' reads modules called so"):
        declared = abstract_model(registry.model_config(CONFIG))
        fitting_arrays(declared, model, lambda path, axes, values: jnp.asarray(values))


def stacked(name: str) -> np.ndarray:
    return np.stack([tensors()[f"model.layers.{layer}.{name}.weight"] for layer in range(LAYERS)])


MAXTEXT_NAMES = {
    "self_attn.q_proj": ("self_attention.query", (WIDTH, HEADS, HEAD)),
    "self_attn.k_proj": ("self_attention.key", (WIDTH, KV, HEAD)),
    "self_attn.v_proj": ("self_attention.value", (WIDTH, KV, HEAD)),
    "self_attn.o_proj": ("self_attention.out", (HEADS, HEAD, WIDTH)),
    "mlp.gate_proj": ("mlp.wi_0", (WIDTH, MLP)),
    "mlp.up_proj": ("mlp.wi_1", (WIDTH, MLP)),
    "mlp.down_proj": ("mlp.wo", (MLP, WIDTH)),
}
MAXTEXT_NORMS = {
    "input_layernorm": "pre_self_attention_layer_norm",
    "post_attention_layernorm": "post_self_attention_layer_norm",
    "self_attn.q_norm": "self_attention.query_norm",
    "self_attn.k_norm": "self_attention.key_norm",
}


@pytest.mark.parametrize("scanned", [True, False])
def test_maxtext_layouts(scanned: bool) -> None:
    """The shapes are those of MaxText's layers; its modules are not installed."""
    flat = {
        "params.token_embedder.embedding": tensors()["model.embed_tokens.weight"],
        "params.decoder.decoder_norm.scale": tensors()["model.norm.weight"],
        "params.decoder.logits_dense.kernel": tensors()["lm_head.weight"].T,
    }
    for name, (module, shape) in MAXTEXT_NAMES.items():
        layers = [one.T.reshape(shape) for one in stacked(name)]
        flat |= by_layer(f"{module}.kernel", layers, scanned)
    for name, module in MAXTEXT_NORMS.items():
        flat |= by_layer(f"{module}.scale", list(stacked(name)), scanned)
    assert_reads(nested(flat), "maxtext")


def by_layer(module: str, layers: list[np.ndarray], scanned: bool) -> dict[str, np.ndarray]:
    if scanned:
        return {f"params.decoder.layers.{module}": np.stack(layers, axis=1)}
    return {f"params.decoder.layers_{i}.{module}": one for i, one in enumerate(layers)}


def test_levanter_layouts() -> None:
    """The shapes are those of Levanter's layers; its own modules are in test_levanter.py."""
    heads = {
        "self_attn.q_proj": (LAYERS, KV, HEADS // KV, HEAD, WIDTH),
        "self_attn.k_proj": (LAYERS, KV, HEAD, WIDTH),
        "self_attn.v_proj": (LAYERS, KV, HEAD, WIDTH),
        "self_attn.o_proj": (LAYERS, WIDTH, HEADS, HEAD),
    }
    flat = {
        "embeddings.token_embeddings.weight.array": tensors()["model.embed_tokens.weight"],
        "transformer.norm.weight.array": tensors()["model.norm.weight"],
        "lm_head.weight.array": tensors()["lm_head.weight"],
    }
    for name in (*LINEAR, *NORMS):
        own = stacked(name)
        laid_out = own.reshape(heads.get(name, own.shape))
        flat[f"transformer.layers.stacked.{name}.weight.array"] = laid_out
    assert_reads(nested(flat), "levanter")


RULES: dict[str, MapTo | str | None] = {
    "wte": "model.embed_tokens.weight",
    "out": MapTo("lm_head.weight", inputs=1),
    "norm.g": "model.norm.weight",
    "h.{layer}.qkv": MapTo(
        tuple(f"model.layers.{{layer}}.self_attn.{one}_proj.weight" for one in "qkv"),
        inputs=1, sizes=(HEADS * HEAD, KV * HEAD, KV * HEAD),
    ),
    "h.{layer}.gate_up": MapTo(
        tuple(f"model.layers.{{layer}}.mlp.{one}_proj.weight" for one in ("gate", "up")), inputs=1
    ),
    "h.{layer}.{room}.{module}_proj": MapTo(
        "model.layers.{layer}.{room}.{module}_proj.weight", inputs=1
    ),
    "h.{layer}.{norm:path}_norm": "model.layers.{layer}.{norm}_norm.weight",
    "h.{layer}.before": "model.layers.{layer}.input_layernorm.weight",
    "h.{layer}.after": "model.layers.{layer}.post_attention_layernorm.weight",
    "step": None,
}  # fmt: skip


def own_tree() -> dict[str, Any]:
    """A tree with fused matrices, in a layout of nobody's."""
    layers = []
    for number in range(LAYERS):
        own = {k.removeprefix(f"model.layers.{number}."): v for k, v in tensors().items()}
        qkv = [own[f"self_attn.{one}_proj.weight"].T for one in "qkv"]
        gate_up = [own[f"mlp.{one}_proj.weight"].T for one in ("gate", "up")]
        layers.append({
            "qkv": np.concatenate(qkv, axis=1),
            "gate_up": np.concatenate(gate_up, axis=1),
            "self_attn": {
                "o_proj": own["self_attn.o_proj.weight"].T,
                "q_norm": own["self_attn.q_norm.weight"],
                "k_norm": own["self_attn.k_norm.weight"],
            },
            "mlp": {"down_proj": own["mlp.down_proj.weight"].T},
            "before": own["input_layernorm.weight"],
            "after": own["post_attention_layernorm.weight"],
        })  # fmt: skip
    embed, norm = tensors()["model.embed_tokens.weight"], tensors()["model.norm.weight"]
    head = jnp.asarray(tensors()["lm_head.weight"].T)
    return {"wte": embed, "out": head, "norm": {"g": norm}, "h": layers, "step": np.zeros(3)}


def test_rules_split_and_transpose() -> None:
    assert_reads(own_tree(), RULES)


def test_a_function_names_each_array() -> None:
    def mapping(path: str, array: Any) -> dict[str, Any]:
        name = path.removeprefix("theirs.")
        return {name: array} if name.endswith("weight") else {}

    assert_reads({"theirs": nested(tensors()), "count": np.zeros(2)}, mapping)


@pytest.mark.parametrize(
    ("change", "rules", "message"),
    [
        (lambda tree: {**tree, "extra": np.zeros(2)}, {}, r"no rule matches.*\n  extra \(2,\)"),
        (
            lambda tree: {**tree, "wte": np.zeros((3, WIDTH), "f4")},
            {},
            "has shape .3, 32., expected .40",
        ),
        (lambda tree: tree, {"wte": "model.norm.weight"}, "two arrays go to 'model.norm.weight'"),
        (lambda tree: tree, {"wte": MapTo("{other}")}, "does not fit wte .40, 32.: KeyError"),
        (lambda tree: tree, {"wte": 3}, "expected a Hugging Face name, a MapTo, or None"),
        (lambda tree: {k: v for k, v in tree.items() if k != "norm"}, {}, "tensors missing"),
    ],
)
def test_what_does_not_fit(change: Any, rules: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        from_hf(change(own_tree()), CONFIG, mapping={**RULES, **rules})


def test_an_unknown_library() -> None:
    with pytest.raises(CheckpointError, match=r"expected one of flax, .*Did you mean 'maxtext'"):
        from_hf({}, CONFIG, mapping="maxtxt")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("params.decoder.layers.self_attention.query.kernel", "mapping='maxtext'"),
        ("params.model.layers.0.self_attn.q_proj.kernel", "mapping='flax'"),
        (
            "params.model.layers.0.self_attn.q_proj.weight",
            "Hugging Face names: pass them as they are to from_hf",
        ),
        ("transformer.layers.stacked.mlp.up_proj.weight", "mapping='levanter'"),
    ],
)
def test_errors_know_what_names_look_like(path: str, said: str) -> None:
    declared = abstract_model(registry.model_config(CONFIG))
    with pytest.raises(ConfigError, match=said):
        fitting_arrays(declared, nested({path: np.zeros(2)}), lambda *given: jnp.zeros(2))


def test_errors_name_paths_as_rules_match_them() -> None:
    own = nnx.Dict(up=nnx.Linear(2, 2, use_bias=False, rngs=nnx.Rngs(0)))
    declared = abstract_model(registry.model_config(CONFIG))
    for given in (own, nnx.state(own)):
        with pytest.raises(ConfigError, match=r"Paths such as 'up\.kernel' are neither"):
            fitting_arrays(declared, given, lambda *given: jnp.zeros(2))
