"""Reads config.json's `quantization_config`.

In: a parsed config.json. Out: a Quantization, or a CheckpointError that names the key. Unsupported
formats are refused by name. Must not know files or models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

from jengine.models.reading.fields import Fields
from jengine.weight_formats import (
    Activations,
    Layout,
    Quantization,
    StoredFormat,
    Values,
    WeightFormat,
)

KEY = "quantization_config"
NOT_READ = {
    "bitsandbytes": "its blocks are read by a library of CUDA kernels only",
    "gguf": "give the .gguf file as the model",
    "hqq": "it is not built",
    "aqlm": "it is not built",
    "quanto": "it is not built",
    "eetq": "it is not built",
    "torchao": "its files are pickles",
    "modelopt": "it is not built",
}
WIDTHS: dict[Layout, tuple[int, ...]] = {"packed": (4, 8), "mxfp4": (4,)}
VALUES: dict[tuple[str, int], Values] = {
    ("int", 8): "int8",
    ("int", 4): "int4",
    ("float", 8): "fp8",
    ("float", 4): "fp4",
}
FP4_GROUP = 32
USE_INSTEAD = "Load the plain model with quantization='int4', 'int8' or 'fp8' instead"
# compressed-tensors' format names -> file layout and value type.
COMPRESSED: dict[str, tuple[Layout, str]] = {
    "pack-quantized": ("packed", "int"),
    "int-quantized": ("int", "int"),
    "naive-quantized": ("int", "int"),
    "float-quantized": ("float", "float"),
    "mxfp4-pack-quantized": ("mxfp4", "float"),
}
NEVER_OTHERWISE = ("part:lm_head",)  # heads are not quantized unless a config names them


def read_quantization(fields: Fields) -> Quantization | None:
    """Read `quantization_config`; None for an unquantized model. Raises CheckpointError."""
    own = fields.part(KEY)
    if own is None:
        return None
    method = own.values.get("quant_method")
    if isinstance(method, str) and method in NOT_READ:
        own.refuse("quant_method", f"{', '.join(READERS)}: {NOT_READ[method]}. {USE_INSTEAD}")
    if not isinstance(method, str) or method not in READERS:
        own.refuse("quant_method", f"one of {', '.join(READERS)}")
    return READERS[method](own)


def _read_compressed(own: Fields) -> Quantization:
    for key in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        if own.values.get(key) not in (None, {}) and not _is_dense(own.values[key]):
            own.refuse(key, "null: it is not built")
    groups = own.part("config_groups")
    if groups is None or not groups.values:
        own.refuse("config_groups", "an object with at least one group")
    found = []
    for name in groups.values:
        group = groups.part(str(name))
        if group is None:
            groups.refuse(str(name), "an object")
        targets = tuple(_names(group, "targets", ("Linear",)))
        found.append((targets, _compressed_group(own, group)))
    return Quantization(tuple(found), tuple(_names(own, "ignore", ())))


def _is_dense(value: object) -> bool:
    return isinstance(value, dict) and value.get("format") == "dense"


def _compressed_group(own: Fields, group: Fields) -> StoredFormat:
    source = group if group.values.get("format") is not None else own
    if source.values.get("format") == "mixed-precision":
        source.refuse("format", "a format in each of the config_groups")
    layout, kind = source.choice("format", "", COMPRESSED)
    weights = group.part("weights")
    if weights is None:
        group.refuse("weights", "an object")
    if group.values.get("output_activations") is not None:
        group.refuse("output_activations", "null: it is not built")
    weights.choice("type", "int", {kind: kind})
    bits = weights.integer("num_bits", 8)
    if bits not in WIDTHS.get(layout, (8,)):
        weights.refuse("num_bits", " or ".join(map(str, WIDTHS.get(layout, (8,)))))
    if weights.values.get("actorder") in ("group", True):
        weights.refuse("actorder", "no order of activations: reordered inputs are not built")
    activations, static, in_groups = _compressed_activations(group)
    size, rows = _strategy(weights)
    zeros = not weights.flag("symmetric", True)
    if zeros and layout != "packed":
        weights.refuse("symmetric", f"true with {source.values['format']}")
    values = VALUES[kind, bits]
    if values == "fp4" and (size != FP4_GROUP or activations is not None):
        weights.refuse("group_size", f"{FP4_GROUP}, and no input_activations")
    own_format = WeightFormat(values, size, zeros, activations, static, in_groups)
    if in_groups and size is None:
        group.refuse("input_activations", "a scale per token, as weights have no groups")
    return StoredFormat(layout, own_format, rows)


def _strategy(weights: Fields) -> tuple[int | None, int]:
    """(input group or None, outputs) that share a scale, from compressed-tensors' strategy."""
    size = weights.optional_integer("group_size", None, minimum=-1)
    implied = "channel" if size in (None, -1, 0) else "group"
    known = {name: name for name in ("tensor", "channel", "group", "block")}
    strategy = weights.choice("strategy", implied, known)
    if strategy == "block":
        rows, inputs = _block(weights, "block_structure")
        return inputs, rows
    if strategy != "group":
        return None, 1
    if size is None or size < 1:
        weights.refuse("group_size", "a positive integer, as the strategy is group")
    return size, 1


def _compressed_activations(group: Fields) -> tuple[Activations | None, bool, bool]:
    """Activation quantization: format, whether scales are static, whether they are per group."""
    own = group.part("input_activations")
    if own is None:
        return None, False, False
    if own.integer("num_bits", 8) != 8:
        own.refuse("num_bits", "8")
    if not own.flag("symmetric", True):
        own.refuse("symmetric", "true: zeros of activations are not built")
    kind = own.choice("type", "int", {"int": "int8", "float": "fp8"})
    dynamic = own.flag("dynamic", False)
    strategies = {"token": False, "group": True} if dynamic else {"tensor": False}
    in_groups = own.choice("strategy", "token" if dynamic else "tensor", strategies)
    return cast(Activations, kind), not dynamic, in_groups


def _read_gptq(own: Fields) -> Quantization:
    bits = own.integer("bits")
    if bits not in (4, 8):
        own.refuse("bits", "4 or 8")
    if own.flag("desc_act", False):
        own.refuse("desc_act", f"false: act-order is not built. {USE_INSTEAD}")
    form = own.choice("checkpoint_format", "gptq", {"gptq": 1, "gptq_v2": 0})
    if own.values.get("dynamic"):
        own.refuse("dynamic", "nothing: a format per module is not built")
    size = own.integer("group_size", 128, minimum=-1)
    weights = WeightFormat("int4" if bits == 4 else "int8", None if size < 1 else size, zeros=True)
    ignored = () if own.flag("lm_head", False) else NEVER_OTHERWISE
    return Quantization(
        ((("Linear",), StoredFormat("gptq", weights, zero_offset=form)),),
        (*ignored, *_parts(own, "modules_to_not_convert")),
    )


def _read_awq(own: Fields) -> Quantization:
    bits = own.integer("bits" if "bits" in own.values else "w_bit", 4)
    if bits != 4:
        own.refuse("bits", "4")
    own.choice("version", "gemm", {name: name for name in ("gemm", "GEMM")})
    if not own.flag("zero_point", True):
        own.refuse("zero_point", "true")
    size = own.integer("group_size" if "group_size" in own.values else "q_group_size", 128)
    stored = StoredFormat("awq", WeightFormat("int4", size, zeros=True))
    ignored = (*NEVER_OTHERWISE, *_parts(own, "modules_to_not_convert"))
    return Quantization(((("Linear",), stored),), ignored)


def _read_fp8(own: Fields) -> Quantization:
    own.choice("fmt", "e4m3", {"e4m3": "e4m3"})
    static = own.choice("activation_scheme", "dynamic", {"dynamic": False, "static": True})
    rows, size = 1, None
    if own.values.get("weight_block_size") is not None:
        rows, size = _block(own, "weight_block_size")
        if static:
            own.refuse("activation_scheme", "dynamic, as weights have blocks")
    weights = WeightFormat(
        "fp8", size, activations="fp8", static=static, activation_groups=size is not None
    )
    ignored = (*_parts(own, "modules_to_not_convert"), *_parts(own, "ignored_layers"))
    stored = StoredFormat("fp8", weights, rows)
    return Quantization(((("Linear",), stored),), (*NEVER_OTHERWISE, *ignored))


def _read_gpt_oss(own: Fields) -> Quantization:
    """gpt-oss's MXFP4: experts only, stacked in one tensor per projection."""
    ignored = tuple(f"re:{name}" for name in _names(own, "modules_to_not_convert", ()))
    stored = StoredFormat("gpt_oss", WeightFormat("fp4", FP4_GROUP))
    return Quantization(((("part:mlp.experts",), stored),), ignored)


def _read_bitnet(own: Fields) -> Quantization:
    """Ternary weights and int8 activations: rounded in files, or plain and rounded when read."""
    own.expect("use_rms_norm", False, ": norms inside of linear layers are not built")
    layouts: dict[str, Layout] = {"bitlinear": "bitlinear", "autobitlinear": "autobitlinear"}
    layout = own.choice("linear_class", "bitlinear", layouts)
    online = own.choice("quantization_mode", "offline", {"offline": False, "online": True})
    if online and layout == "autobitlinear":
        layout = "online_bitlinear"
    stored = StoredFormat(layout, WeightFormat("int4", activations="int8"))
    listed = own.values.get("modules_to_not_convert") is not None
    ignored = tuple(_parts(own, "modules_to_not_convert")) if listed else NEVER_OTHERWISE
    return Quantization(((("Linear",), stored),), ignored)


READERS: dict[str, Callable[[Fields], Quantization]] = {
    "compressed-tensors": _read_compressed,
    "gptq": _read_gptq,
    "awq": _read_awq,
    "fp8": _read_fp8,
    "mxfp4": _read_gpt_oss,
    "bitnet": _read_bitnet,
}


def _block(own: Fields, key: str) -> tuple[int, int]:
    """(outputs, inputs) of a scale's block."""
    value = own.values.get(key)
    if (
        not isinstance(value, list | tuple)
        or len(value) != 2
        or not all(type(size) is int and size > 0 for size in value)
    ):
        own.refuse(key, "two positive integers")
    return value[0], value[1]


def _names(own: Fields, key: str, default: Sequence[str]) -> Sequence[str]:
    value = own.values.get(key)
    if value is None:
        return default
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        own.refuse(key, "a list of names of modules")
    for one in value:
        if one.startswith("re:"):
            try:
                re.compile(one[3:])
            except re.error as error:
                own.refuse(key, f"regular expressions after 're:' ({error})")
    return value


def _parts(own: Fields, key: str) -> list[str]:
    """Targets matching all modules whose dotted names contain these consecutive parts."""
    return [f"part:{name.strip('.')}" for name in _names(own, key, ())]
