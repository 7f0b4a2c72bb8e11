"""Quantized files as their makers publish them: gpt-oss's MXFP4, and FP8 of DeepSeek and Qwen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError
from jengine.models.parameter import named_parameters
from jengine.weights.safetensors_file import read_header
from jengine.weights.safetensors_io import load_model
from jengine.weights.save import save_model, saved_config
from tests.marks import slow
from tests.models.plain_logits import plain_logits
from tests.weights.quantized_models import (
    LAYOUTS,
    TERNARY,
    Folders,
    Made,
    Tensors,
    change_tensors,
    float_of,
    mxfp4,
    write_folders,
    write_quantized,
)
from tests.weights.test_quantized import ENGINE, TOKENS, with_saved_config

GPT_OSS = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
}  # fmt: skip
DOWN = "model.layers.1.mlp.experts.down_proj"
# Two blocks along the inputs of gates and of the other matrix.
GPT_OSS_SIZES = {"hidden_size": 64, "intermediate_size": 64}
# transformers dequantizes whole blocks only.
WHOLE_BLOCKS = 16
WHOLE_SIZES = {
    "kv_lora_rank": 16, "q_lora_rank": 32, "v_head_dim": 12, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 16, "moe_intermediate_size": 32,
}  # fmt: skip


def packed_experts(name: str, array: np.ndarray) -> Made | None:
    """Experts [experts, inputs, outputs] as gpt-oss packs them."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return None
    made = [mxfp4(expert.T) for expert in array]
    blocks = np.stack([one.tensors["weight_packed"] for one in made])
    scales = np.stack([one.tensors["weight_scale"] for one in made])
    tensors = {f"{name}_blocks": blocks.reshape(*scales.shape, 16), f"{name}_scales": scales}
    return Made(tensors, np.stack([one.weight.T for one in made]))


def write_gpt_oss(folder: Path, **overrides: Any) -> Folders:
    return write_folders(folder, "gpt_oss", GPT_OSS, packed_experts, **GPT_OSS_SIZES, **overrides)


def test_gpt_oss_experts_are_what_blocks_and_scales_stand_for(tmp_path: Path) -> None:
    folders = write_gpt_oss(tmp_path)
    model = load_model(folders.quantized)
    expected = plain_logits(load_model(folders.plain), TOKENS)
    np.testing.assert_allclose(plain_logits(model, TOKENS), expected, rtol=1e-4, atol=1e-4)
    declared = dict(named_parameters(model))
    assert declared["layers.0.mlp.down.weight"].dtype == jnp.uint8
    assert declared["layers.0.attention.out.weight"].dtype == jnp.float32
    save_model(model, saved_config(model.config, "safetensors"), tmp_path / "saved")
    first, again = ((one / "model.safetensors") for one in (folders.quantized, tmp_path / "saved"))
    assert tensors_of(first) == tensors_of(again)


def tensors_of(file: Path) -> dict[str, tuple[str, bytes]]:
    return {
        name: (tensor.dtype, np.ascontiguousarray(tensor.read()).tobytes())
        for name, tensor in read_header(file).items()
    }


@pytest.mark.slow
def test_an_engine_runs_gpt_oss_as_its_plain_weights(tmp_path: Path) -> None:
    answers = []
    for folder in write_gpt_oss(tmp_path):
        with jengine.LLM(folder, **ENGINE) as llm:
            [made] = llm.generate(
                {"prompt_token_ids": TOKENS},
                SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
            )
            answers.append(list(made.outputs[0].token_ids))
    assert answers[0] == answers[1]


def spoil_exponent(tensors: Tensors) -> None:
    tensors[f"{DOWN}_scales"][2, 3, 1] = 255


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{DOWN}_scales"), f"tensor missing: '{DOWN}_scales'"),
        (
            lambda tensors: tensors.update({f"{DOWN}_blocks": np.zeros((4, 64, 2, 8), np.uint8)}),
            rf"'{DOWN}_blocks' is U8 \(4, 64, 2, 8\), expected U8 .*, 64, 2, 16\)",
        ),
        (spoil_exponent, f"'{DOWN}_scales' holds NaN"),
    ],
)
def test_damage_in_gpt_oss_is_named(change: Any, message: str, tmp_path: Path) -> None:
    folder = write_gpt_oss(tmp_path).quantized
    change_tensors(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


@pytest.mark.parametrize("name", ["W8A16 channel", *slow("FP8 block", "GPTQ 4", "W4A16 group")])
def test_keys_and_values_of_latent_attention_are_plain_in_a_step(name: str, tmp_path: Path) -> None:
    """`kv_b_proj` is quantized in files, and no `Linear` here. Blocks at the edges are partial."""
    layout = LAYOUTS[name]
    sizes = {"kv_lora_rank": 16, "v_head_dim": 12, "q_lora_rank": 32, "moe_intermediate_size": 32}
    folders = write_quantized(tmp_path, "deepseek_v3", layout, **sizes)
    model = load_model(folders.quantized)
    expected = plain_logits(load_model(folders.plain), TOKENS)
    np.testing.assert_allclose(plain_logits(model, TOKENS), expected, rtol=1e-4, atol=1e-4)
    up = dict(named_parameters(model))["layers.0.attention.kv_up.weight"]
    assert up.dtype == jnp.float32
    saved = saved_config(model.config, "safetensors")
    save_model(with_saved_config(model), saved, tmp_path / "saved")
    again = plain_logits(load_model(tmp_path / "saved"), TOKENS)
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen3", *slow("deepseek_v3")])
def test_published_fp8_rounds_activations_and_nothing_else(family: str, tmp_path: Path) -> None:
    """As published: blocks with `weight_scale_inv`, and lists of modules that stay plain."""
    layout = LAYOUTS["DeepSeek FP8"]
    ignored = ["lm_head", "model.layers.0.mlp.gate", "model.layers.0.input_layernorm"]
    config = {**layout.config, "modules_to_not_convert": ignored}
    folders = write_quantized(tmp_path, family, layout._replace(config=config))
    found, expected = (plain_logits(load_model(folder), TOKENS) for folder in folders)
    assert 0 < np.abs(found - expected).max() < 0.2 * np.abs(expected).max()


@pytest.mark.parametrize("name", TERNARY)
def test_ternary_weights_are_what_bitnet_stores(name: str, tmp_path: Path) -> None:
    """Of a matrix alone, and of the three that one matmul takes, each with its own scale."""
    folders = write_quantized(tmp_path, "bitnet", LAYOUTS[name])
    found, expected = (load_model(folder).layers[1] for folder in folders)
    for ours, plain in (
        (found.mlp.down, expected.mlp.down), (found.attention.qkv, expected.attention.qkv),
    ):  # fmt: skip
        tensors = {name: getattr(ours, name)[...] for name in ours.tensor_names}
        made = ours.scheme.plain(ours.shape, tensors)["weight"]
        np.testing.assert_allclose(made, plain.weight[...], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", TERNARY)
def test_transformers_runs_ternary_weights_as_we_do(name: str, tmp_path: Path) -> None:
    """Rounding of activations is not continuous: most of them are rounded alike."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    folder = write_quantized(tmp_path, "bitnet", LAYOUTS[name], hidden_size=64).quantized
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    found = plain_logits(load_model(folder), TOKENS)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "qwen3"])
def test_transformers_dequantizes_to_the_same_logits(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    if family == "gpt_oss":
        folders = write_gpt_oss(tmp_path)
        how = transformers.Mxfp4Config(dequantize=True)
    else:
        pytest.importorskip("accelerate")
        layout = LAYOUTS["DeepSeek FP8"]
        block = {**layout.config, "weight_block_size": [WHOLE_BLOCKS] * 2}
        make = float_of(WHOLE_BLOCKS, WHOLE_BLOCKS, "weight_scale_inv")
        layout = layout._replace(make=make, config=block)
        sizes = WHOLE_SIZES if family == "deepseek_v3" else {}
        folders = write_quantized(tmp_path, family, layout, **sizes)
        how = transformers.FineGrainedFP8Config(
            dequantize=True, weight_block_size=(WHOLE_BLOCKS, WHOLE_BLOCKS)
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folders.quantized, quantization_config=how, dtype=torch.float32
    )
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    found = plain_logits(load_model(folders.plain), TOKENS)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
    config = json.loads((folders.quantized / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] in ("mxfp4", "fp8")
