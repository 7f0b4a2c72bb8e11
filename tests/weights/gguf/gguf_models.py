"""GGUF files of tiny models, written byte by byte, and the plain checkpoints they stand for."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from jengine.weights.safetensors_file import read_header
from tests.models.tiny_models import write_tiny_native
from tests.weights.quantized_models import write_tensors

SIZES = {"hidden_size": 256, "intermediate_size": 256, "initializer_range": 0.05}
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30}
ARRAYS = {"uint8": 0, "int32": 5, "float32": 6, "bool": 7}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class Packed(NamedTuple):
    """A tensor of a file, and what it stands for."""

    kind: str
    data: bytes
    plain: np.ndarray


def plain(kind: str, array: np.ndarray) -> Packed:
    """Numbers as they are."""
    dtypes = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    stored = array.astype(dtypes[kind])
    return Packed(kind, stored.tobytes(), stored.astype(np.float32))


def q8_0(array: np.ndarray) -> Packed:
    """32 numbers: a float16 scale and int8."""
    blocks = array.reshape(-1, 32)
    scales = (np.abs(blocks).max(-1, keepdims=True) / 127).astype(np.float16)
    wide = scales.astype(np.float32)
    values = np.clip(np.round(blocks / np.maximum(wide, 1e-9)), -127, 127).astype(np.int8)
    data = np.concatenate([scales.view(np.uint8), values.view(np.uint8)], 1)
    return Packed("Q8_0", data.tobytes(), (wide * values).reshape(array.shape))


def q4_k(array: np.ndarray) -> Packed:
    """Random codes: eight groups of 32 with six bits of scale and offset each."""
    rng, count = np.random.default_rng(array.size), array.size // 256
    scales, least = rng.integers(1, 64, (2, count, 8))
    codes = rng.integers(0, 16, (count, 8, 32))
    both = np.array([[4e-4, 5e-3]] * count, np.float16)
    low, high = slice(0, 4), slice(4, 8)
    packed = np.concatenate([
        scales[:, low] | (scales[:, high] >> 4) << 6,
        least[:, low] | (least[:, high] >> 4) << 6,
        scales[:, high] & 15 | (least[:, high] & 15) << 4,
    ], 1)  # fmt: skip
    nibbles = codes[:, 0::2] | codes[:, 1::2] << 4
    parts = (
        both.view(np.uint8),
        packed.astype(np.uint8),
        nibbles.reshape(count, -1).astype(np.uint8),
    )
    wide = both.astype(np.float32)
    factor = (wide[:, :1] * scales).astype(np.float32)[..., None]
    offset = (wide[:, 1:] * least).astype(np.float32)[..., None]
    found = (factor * codes.astype(np.float32) - offset).reshape(array.shape)
    return Packed("Q4_K", np.concatenate(parts, 1).tobytes(), found)


def q6_k(array: np.ndarray) -> Packed:
    """Random codes: sixteen groups of 16 with a scale of eight bits each."""
    rng, count = np.random.default_rng(array.size + 1), array.size // 256
    scales = rng.integers(-128, 128, (count, 16)).astype(np.int8)
    codes = rng.integers(0, 64, (count, 2, 4, 32))
    factor = np.full((count, 1), 4e-5, np.float16)
    first, second, third, fourth = (codes[:, :, quarter] for quarter in range(4))
    low = np.concatenate([first & 15 | (third & 15) << 4, second & 15 | (fourth & 15) << 4], -1)
    high = first >> 4 | second >> 4 << 2 | third >> 4 << 4 | fourth >> 4 << 6
    bytes_ = [
        low.reshape(count, -1).astype(np.uint8), high.reshape(count, -1).astype(np.uint8),
        scales.view(np.uint8), factor.view(np.uint8),
    ]  # fmt: skip
    wide = (factor.astype(np.float32) * scales)[..., None]
    found = wide * (codes - 32).reshape(count, 16, 16).astype(np.float32)
    return Packed("Q6_K", np.concatenate(bytes_, 1).tobytes(), found.reshape(array.shape))


PACK: dict[str, Callable[[np.ndarray], Packed]] = {
    "F32": lambda array: plain("F32", array),
    "F16": lambda array: plain("F16", array),
    "BF16": lambda array: plain("BF16", array),
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q6_K": q6_k,
}
Choose = Callable[[str], str]  # Hugging Face's name -> the type of a matrix


class Files(NamedTuple):
    """A GGUF file, and the plain folder that it stands for."""

    gguf: Path
    folder: Path


def write_gguf_model(
    folder: Path,
    family: str,
    choose: Choose,
    metadata: Mapping[str, Any] | None = None,
    more: Mapping[str, np.ndarray] | None = None,
    **overrides: Any,
) -> Files:
    """Write both, of random weights."""
    written = write_tiny_native(folder / "plain", family, **{**SIZES, **overrides})
    file = written / "model.safetensors"
    given = {name: np.array(tensor.read()) for name, tensor in read_header(file).items()}
    config = json.loads((written / "config.json").read_text())
    stands_for, stored = {}, {}
    for name, array in given.items():
        packed = PACK[choose(name) if array.ndim == 2 else "F32"](array)
        stands_for[name] = packed.plain
        if family == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            packed = packed._replace(data=turned(packed.data, len(array), heads))
        stored[gguf_name(name)] = packed
    write_tensors(file, stands_for)
    stored |= {name: plain("F32", array) for name, array in (more or {}).items()}
    out = folder / "model.gguf"
    write_gguf(out, {**metadata_of(family, config), **(metadata or {})}, stored)
    return Files(out, written)


def turned(data: bytes, rows: int, heads: int) -> bytes:
    """llama.cpp's order of rows: the two halves of each head in turns."""
    found = np.frombuffer(data, np.uint8).reshape(heads, 2, rows // heads // 2, -1)
    return found.swapaxes(1, 2).tobytes()


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    module, _, kind = name.rpartition(".")
    if module in NAMES:
        return f"{NAMES[module]}.{kind}"
    _, _, layer, own = module.split(".", 3)
    return f"blk.{layer}.{NAMES[own]}.{kind}"


def metadata_of(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp's converter writes of a config.json."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    own = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": hidden,
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": config.get("head_dim") or hidden // heads,
        "rope.freq_base": float(rope_base(config)),
    }
    return {
        "general.architecture": family,
        **{f"{family}.{key}": value for key, value in own.items()},
        "tokenizer.ggml.tokens": [str(token) for token in range(config["vocab_size"])],
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def rope_base(config: Mapping[str, Any]) -> float:
    """The base of rotary frequencies."""
    nested: Mapping[str, Any] = config.get("rope_parameters") or {}
    nested = nested.get("full_attention", nested)
    return float(config.get("rope_theta", nested.get("rope_theta", 10000.0)))


def write_gguf(file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Packed]) -> None:
    """A file of version 3."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += text(key) + described(value)
    data = b""
    for name, packed in tensors.items():
        shape = packed.plain.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", TYPES[packed.kind], len(data))
        data += packed.data + b"\0" * (-len(packed.data) % 32)
    file.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def described(value: Any) -> bytes:
    """A value of metadata with its type."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, np.ndarray):
        kind = ARRAYS[value.dtype.name]
        return struct.pack("<IIQ", 9, kind, len(value)) + value.tobytes()
    if isinstance(value, bool | np.bool_):
        return struct.pack("<IB", 7, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)
