"""Writes `quantization_config` in compressed-tensors' form, which vLLM and transformers read.

In: a Quantization. Out: the same weights in compressed-tensors layouts, and config.json keys.
gpt-oss's MXFP4 experts stay as they are: all engines read only that form.
"""

from __future__ import annotations

import re

from jengine.models.reading.quantization_config import COMPRESSED
from jengine.weight_formats import Quantization, StoredFormat, WeightFormat


def as_compressed(quantization: Quantization) -> Quantization:
    """The quantization in compressed-tensors layouts, in which it is saved."""
    groups = tuple(
        (tuple(map(_target, targets)), _compressed_layout(stored))
        for targets, stored in quantization.groups
    )
    return Quantization(groups, tuple(map(_target, quantization.ignored)))


def _compressed_layout(stored: StoredFormat) -> StoredFormat:
    own = stored.weights.in_files
    if stored.layout == "gpt_oss":
        return stored
    if own.values == "fp4":
        return StoredFormat("mxfp4", own)
    if own.values == "fp8":
        return StoredFormat("float", own, stored.block_rows)
    packed = own.values == "int4" or own.zeros or own.activations is None
    return StoredFormat("packed" if packed else "int", own)


def _target(target: str) -> str:
    """A target in compressed-tensors' syntax."""
    if not target.startswith("part:"):
        return target
    name = re.escape(target.removeprefix("part:"))
    return rf"re:(.*\.)?{name}(\.|$)"


def write_quantization(quantization: Quantization) -> dict[str, object]:
    """Inverse of `read_quantization`, for results of `as_compressed`."""
    if any(stored.layout == "gpt_oss" for _, stored in quantization.groups):
        names = [name.removeprefix("re:") for name in quantization.ignored]
        return {"quant_method": "mxfp4", "modules_to_not_convert": names}
    formats = {layout: name for name, (layout, _) in reversed(COMPRESSED.items())}
    groups = {
        f"group_{index}": {
            "targets": list(targets),
            "weights": _written_weights(stored),
            "input_activations": _written_activations(stored.weights),
            "output_activations": None,
            "format": formats[stored.layout],
        }
        for index, (targets, stored) in enumerate(quantization.groups)
    }
    used = {str(group["format"]) for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": used.pop() if len(used) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(quantization.ignored),
    }


def _written_weights(stored: StoredFormat) -> dict[str, object]:
    own = stored.weights
    strategy = "channel" if own.group is None else "block" if stored.block_rows > 1 else "group"
    return {
        "num_bits": own.bits,
        "type": "float" if own.values in ("fp8", "fp4") else "int",
        "symmetric": not own.zeros,
        "strategy": strategy,
        "group_size": own.group if strategy == "group" else None,
        "block_structure": [stored.block_rows, own.group] if strategy == "block" else None,
        "dynamic": False,
    }


def _written_activations(own: WeightFormat) -> dict[str, object] | None:
    if own.activations is None:
        return None
    strategy = "tensor" if own.static else "group" if own.activation_groups else "token"
    return {
        "num_bits": 8,
        "type": "float" if own.activations == "fp8" else "int",
        "symmetric": True,
        "strategy": strategy,
        "group_size": own.group if strategy == "group" else None,
        "dynamic": not own.static,
    }
