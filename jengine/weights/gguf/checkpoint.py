"""A GGUF file as a checkpoint: its config, and its tensors under Hugging Face's names.

In: a file, or the first of several. Out: a ModelConfig and tensors. Matrices of Q8_0 stay int8 with
a scale for 32 inputs, which is what they are; all others are dequantized as they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jengine.config import AttentionConfig, ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.weight_formats import Quantization, StoredFormat, WeightFormat
from jengine.weights.gguf.blocks import PLAIN, plain_array, q8_scales, q8_values
from jengine.weights.gguf.config import ROPE_FACTORS, config_of
from jengine.weights.gguf.files import open_gguf
from jengine.weights.gguf.header import Header, PackedTensor
from jengine.weights.quantized_files import finite

Q8_0 = "Q8_0"
STORED = StoredFormat("gguf", WeightFormat("int8", 32))
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Matrices that are multiplied as one, so that they are quantized alike or not at all.
JOINED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("attn_output",), ("ffn_down",))
IN_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# llama.cpp's own converter turns neighbouring lanes of Llama's queries and keys.
INTERLEAVED = {"attn_q": "num_heads", "attn_k": "num_kv_heads"}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor by its name in Hugging Face's files, or the values or scales of a quantized one.

    `dtype` is what it is read as, in the words of safetensors.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    packed: PackedTensor
    decode: Callable[[PackedTensor], np.ndarray]
    rows: np.ndarray | None = None  # which row of the file each row is

    @property
    def file(self) -> Path:
        """The file that holds it."""
        return self.packed.file

    @property
    def size(self) -> int:
        """Bytes in the file, those of values and scales together."""
        return self.packed.size

    def read(self) -> np.ndarray:
        """The array, whose rows are in Hugging Face's order."""
        array = self.decode(self.packed)
        return array if self.rows is None else array[self.rows]


def read_gguf_config(file: Path) -> ModelConfig:
    """The model in a file, with those of its matrices that stay quantized."""
    header = open_gguf(file)
    config = registry.model_config(config_of(header))
    names = tuple(_kept(header))
    if not names:
        return config
    return replace(config, quantization=Quantization(((names, STORED),)))


def gguf_tensors(file: Path) -> dict[str, GgufTensor]:
    """All tensors by Hugging Face's names; of quantized ones values and scales."""
    header = open_gguf(file)
    config = registry.model_config(config_of(header))
    kept = set(_kept(header))
    found: dict[str, GgufTensor] = {}
    for name, packed in header.tensors.items():
        if name == ROPE_FACTORS:
            continue
        own, rows = _hf_name(header, name), _rows(config, name)
        made = [(own, "F32", packed.shape, _dequantized)]
        if packed.type.name in PLAIN:
            made = [(own, packed.type.name, packed.shape, plain_array)]
        elif own.removesuffix(".weight") in kept:
            groups = packed.shape[0], packed.shape[1] // packed.type.numbers
            scale = f"{own.removesuffix('.weight')}.scale"
            made = [(own, "I8", packed.shape, q8_values), (scale, "F16", groups, _scales)]
        for one, dtype, shape, decode in made:
            found[one] = GgufTensor(one, dtype, shape, packed, decode, rows)
    return found


def _scales(packed: PackedTensor) -> np.ndarray:
    return finite(packed, q8_scales(packed))


def _dequantized(packed: PackedTensor) -> np.ndarray:
    return finite(packed, plain_array(packed))


def _kept(header: Header) -> Iterator[str]:
    """Modules that are Q8_0 in all that they are multiplied with as one."""
    layers = {match[1] for name in header.tensors if (match := IN_LAYER.fullmatch(name))}
    groups = [[f"blk.{layer}.{name}" for name in names] for layer in layers for names in JOINED]
    for group in [*groups, ["output"]]:
        tensors = [header.tensors.get(f"{name}.weight") for name in group]
        if all(one is not None and one.type.name == Q8_0 for one in tensors):
            yield from (
                _hf_name(header, f"{name}.weight").removesuffix(".weight") for name in group
            )


def _hf_name(header: Header, name: str) -> str:
    match = IN_LAYER.fullmatch(name)
    if match is not None and match[2] in IN_LAYERS:
        return f"model.layers.{match[1]}.{IN_LAYERS[match[2]]}.{match[3]}"
    module, _, kind = name.rpartition(".")
    if module not in WHOLE:
        raise CheckpointError(
            f"{header.file}: {name!r} is a tensor that this architecture has no place for."
        )
    return f"{WHOLE[module]}.{kind}"


def _rows(config: ModelConfig, name: str) -> np.ndarray | None:
    """Rows of Llama's queries and keys, whose heads' two halves alternate in the file."""
    match = IN_LAYER.fullmatch(name)
    if match is None or match[2] not in INTERLEAVED or config.architecture != "LlamaForCausalLM":
        return None
    attention = config.layers[int(match[1])].mixer
    assert isinstance(attention, AttentionConfig), "Llama has no other layers"
    heads = getattr(attention, INTERLEAVED[match[2]])
    return np.arange(heads * attention.head_dim).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
