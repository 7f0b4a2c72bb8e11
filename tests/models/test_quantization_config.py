"""quantization_config of config.json: which modules are quantized, how, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.models.reading.quantization_config import read_quantization
from jengine.models.reading.quantization_write import as_compressed, write_quantization
from jengine.weight_formats import Quantization, WeightFormat

INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
TOKEN = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FLOAT = {**INT8, "type": "float"}
Q_PROJ = "model.layers.3.self_attn.q_proj"
UP_PROJ = "model.layers.3.mlp.up_proj"


def read(config: Any) -> Quantization:
    found = read_quantization(Fields({"quantization_config": config}))
    assert found is not None
    return found


def compressed(format: str = "pack-quantized", **group: Any) -> dict[str, Any]:
    own = {"targets": ["Linear"], "weights": INT4, **group}
    return {
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": own},
    }  # fmt: skip


READ = {
    "W4A16": (compressed(), WeightFormat("int4", 128)),
    "W8A8 dynamic": (
        compressed("int-quantized", weights=INT8, input_activations=TOKEN),
        WeightFormat("int8", activations="int8"),
    ),
    "W8A8 static": (
        compressed(
            "int-quantized",
            weights=INT8,
            input_activations={**TOKEN, "strategy": "tensor", "dynamic": False},
        ),
        WeightFormat("int8", activations="int8", static=True),
    ),
    "W4A8": (
        compressed(input_activations=TOKEN),
        WeightFormat("int4", 128, activations="int8"),
    ),
    "FP8 block": (
        compressed(
            "float-quantized",
            weights={**FLOAT, "strategy": "block", "block_structure": [64, 128]},
            input_activations={**TOKEN, "type": "float", "strategy": "group", "group_size": 128},
        ),
        WeightFormat("fp8", 128, activations="fp8", activation_groups=True),
    ),
    "DeepSeek": (
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
        WeightFormat("fp8", 128, activations="fp8", activation_groups=True),
    ),
    "FP8 static": (
        {"quant_method": "fp8", "activation_scheme": "static"},
        WeightFormat("fp8", activations="fp8", static=True),
    ),
    "GPTQ": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False},
        WeightFormat("int8", zeros=True),
    ),
    "AWQ": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"},
        WeightFormat("int4", 64, zeros=True),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_a_config_says_how_each_module_is_stored(name: str) -> None:
    config, expected = READ[name]
    found = read(config)
    stored = found.format_of(Q_PROJ)
    assert stored is not None and stored.weights == expected
    assert found.format_of("lm_head") is None
    saved = as_compressed(found)
    again = read(write_quantization(saved))
    assert again == saved
    assert again.format_of("lm_head") is None
    kept = again.format_of(Q_PROJ)
    assert kept is not None and kept.weights == expected


def test_a_plain_config_has_none() -> None:
    assert read_quantization(Fields({})) is None
    assert read_quantization(Fields({"quantization_config": None})) is None


def test_the_first_group_whose_target_matches_counts() -> None:
    config = compressed()
    config["format"] = "mixed-precision"
    config["config_groups"] = {
        "a": {"targets": ["re:.*self_attn"], "weights": INT8, "format": "int-quantized"},
        "b": {"targets": [UP_PROJ], "weights": INT4, "format": "pack-quantized"},
    }  # fmt: skip
    found = read(config)
    formats = [found.format_of(name) for name in (Q_PROJ, UP_PROJ)]
    assert [one and one.weights.values for one in formats] == ["int8", "int4"]
    assert found.format_of("model.layers.4.mlp.up_proj") is None


def test_ignored_modules_are_parts_of_names() -> None:
    found = read({"quant_method": "awq", "group_size": 64, "modules_to_not_convert": ["layers.3"]})
    assert found.format_of(Q_PROJ) is None
    assert found.format_of(Q_PROJ.replace(".3.", ".33.")) is not None


REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ([1], "quantization_config"),
    "no method": ({}, "quant_method"),
    "another method": ({"quant_method": "odd"}, "compressed-tensors, gptq, awq, fp8"),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "CUDA kernels"),
    "act-order": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, "desc_act.*act-order"),
    "three bits": ({"quant_method": "gptq", "bits": 3}, "'bits'.*4 or 8"),
    "a format per module": (
        {"quant_method": "gptq", "bits": 4, "dynamic": {"+:a": {}}}, "'dynamic'",
    ),
    "norms in linear layers": (
        {"quant_method": "bitnet", "use_rms_norm": True}, "use_rms_norm.*false",
    ),
    "gemv": ({"quant_method": "awq", "version": "gemv"}, "'version'"),
    "another FP8": ({"quant_method": "fp8", "fmt": "e5m2"}, "'fmt'"),
    "a block of one size": ({"quant_method": "fp8", "weight_block_size": [128]}, "two positive"),
    "no groups": ({**compressed(), "config_groups": {}}, "config_groups"),
    "another format": (compressed("marlin-24"), "'format'.*pack-quantized"),
    "an order": (compressed(weights={**INT4, "actorder": "group"}), "actorder"),
    "zeros of activations": (
        compressed(input_activations={**TOKEN, "symmetric": False}), "symmetric",
    ),
    "a group without a size": (compressed(weights={**INT4, "group_size": None}), "group_size"),
    "a wrong pattern": ({**compressed(), "ignore": ["re:("]}, "regular expressions"),
    "sparsity": ({**compressed(), "sparsity_config": {"format": "sparse-24"}}, "sparsity_config"),
    "a quantized cache": ({**compressed(), "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_by_name(name: str) -> None:
    config, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        read(config)
