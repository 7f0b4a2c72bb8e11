"""Parameters in the layout of tunix.models become jengine's, exactly; needs no Tunix.

The layout is built from a checkpoint's tensors as Tunix loads them: matrices turned, heads split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.errors import ConfigError
from jengine.integrations.tunix_models import dense_decoder
from jengine.models.parameter import named_parameters
from jengine.weights.folder import open_checkpoint
from jengine.weights.safetensors_io import load_model
from tests.models.tiny_models import write_tiny_native

HEADS, KV_HEADS, DIM, HIDDEN = 4, 2, 16, 32
NAMES = {
    "model.embed_tokens.weight": "embedder.input_embedding",
    "model.norm.weight": "final_norm.w",
    "lm_head.weight": "lm_head.w",
    "self_attn.q_proj.weight": "attn.q_proj.w",
    "self_attn.k_proj.weight": "attn.k_proj.w",
    "self_attn.v_proj.weight": "attn.v_proj.w",
    "self_attn.o_proj.weight": "attn.o_proj.w",
    "self_attn.q_proj.bias": "attn.q_bias",
    "self_attn.k_proj.bias": "attn.k_bias",
    "self_attn.v_proj.bias": "attn.v_bias",
    "self_attn.q_norm.weight": "attn.q_norm.w",
    "self_attn.k_norm.weight": "attn.k_norm.w",
    "mlp.gate_proj.weight": "mlp.gate_proj.kernel",
    "mlp.up_proj.weight": "mlp.up_proj.kernel",
    "mlp.down_proj.weight": "mlp.down_proj.kernel",
    "input_layernorm.weight": "input_layernorm.w",
    "post_attention_layernorm.weight": "post_attention_layernorm.w",
}
SPLIT = {
    "attn.q_proj.w": (HIDDEN, HEADS, DIM),
    "attn.k_proj.w": (HIDDEN, KV_HEADS, DIM),
    "attn.v_proj.w": (HIDDEN, KV_HEADS, DIM),
    "attn.o_proj.w": (HEADS, DIM, HIDDEN),
}


def as_tunix(name: str, tensor: np.ndarray) -> tuple[str, np.ndarray]:
    """A checkpoint's tensor as tunix.models holds it."""
    begin, found = "", name
    if name.startswith("model.layers."):
        index, found = name.removeprefix("model.layers.").split(".", 1)
        begin = f"layers.{index}."
    theirs = NAMES[found]
    if tensor.ndim == 2 and theirs != "embedder.input_embedding":
        tensor = tensor.T.reshape(SPLIT.get(theirs, tensor.T.shape))
    return begin + theirs, tensor


def models(path: Path, family: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """A jengine model, and its parameters as Tunix would hold them."""
    folder = write_tiny_native(path, family, head_dim=DIM, **settings)
    tensors = open_checkpoint(folder)
    pairs = [as_tunix(name, np.asarray(tensor.read())) for name, tensor in tensors.items()]
    return load_model(folder), {path: jnp.asarray(array) for path, array in pairs}


@pytest.mark.parametrize(
    ("family", "tied"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen3", False)]
)
def test_every_parameter_arrives(tmp_path: Path, family: str, tied: bool) -> None:
    ours, theirs = models(tmp_path, family, tie_word_embeddings=tied)
    made = dense_decoder(theirs)
    wanted = dict(named_parameters(ours))
    assert set(made) == set(wanted)
    for path, parameter in wanted.items():
        np.testing.assert_array_equal(made[path], parameter[...], err_msg=path)


def test_what_is_no_such_model_is_refused(tmp_path: Path) -> None:
    _, theirs = models(tmp_path, "qwen3")
    lora = {**theirs, "layers.0.attn.q_proj.w_lora_a": theirs["layers.0.attn.q_proj.w"]}
    with pytest.raises(ConfigError, match=r"unknown \['layers.0.attn.q_proj.w_lora_a'\]"):
        dense_decoder(lora)
    del theirs["layers.1.mlp.up_proj.kernel"]
    with pytest.raises(ConfigError, match=r"missing \['layers.1.mlp.up_proj.kernel'\]"):
        dense_decoder(theirs)
    with pytest.raises(ConfigError, match=r"dense tunix\.models"):
        dense_decoder({"layers.0": theirs["final_norm.w"]})
