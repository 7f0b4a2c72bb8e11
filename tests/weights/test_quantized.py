"""Quantized checkpoints: what they load as, what is refused, and an engine that runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import CheckpointError, ConfigError, UnsupportedFeature
from jengine.models.language_model import LanguageModel
from jengine.models.parameter import named_parameters
from jengine.models.quantized import with_quantization
from jengine.models.registry import model_config
from jengine.weights.abstract import abstract_model, with_values
from jengine.weights.live import named_arrays
from jengine.weights.safetensors_io import load_model
from jengine.weights.save import save_model, saved_config
from tests.marks import slow
from tests.models.plain_logits import plain_logits
from tests.weights.quantized_models import (
    LAYOUTS,
    Tensors,
    change_tensors,
    write_quantized,
)

# Formats of every run.
USUAL = ["W8A16 channel", "FP8 block", "GPTQ 4", "AWQ"]
TOKENS = [1, 5, 9, 33, 2, 64, 7]
# Outputs come in words of eight, inputs in whole groups.
PACKED_SIZES: dict[str, dict[str, Any]] = {
    "phi3": {"pad_token_id": 0},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_d_ssm": 32},
}
DOWN = "model.layers.1.mlp.down_proj"
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 32,
    "enforce_eager": True,
    "num_gpu_blocks_override": 16,
    "show_progress": False,
}


@pytest.mark.parametrize("name", [*USUAL, *slow(*(name for name in LAYOUTS if name not in USUAL))])
def test_logits_are_those_of_the_weights_it_stands_for(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    folders = write_quantized(tmp_path, "llama", layout)
    found, expected = (plain_logits(load_model(folder), TOKENS) for folder in folders)
    if layout.rounds_activations:
        difference = np.abs(found - expected).max()
        assert 0 < difference < 0.2 * np.abs(expected).max()
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["phi3", *slow("mixtral", "qwen2", "falcon_h1")])
@pytest.mark.parametrize("name", ["W4A16 group, zeros", *slow("FP8 block", "GPTQ 4")])
def test_experts_and_matrices_that_files_hold_as_one(
    family: str, name: str, tmp_path: Path
) -> None:
    folders = write_quantized(tmp_path, family, LAYOUTS[name], **PACKED_SIZES.get(family, {}))
    found, expected = (plain_logits(load_model(folder), TOKENS) for folder in folders)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_weights_stay_small_and_the_head_plain(tmp_path: Path) -> None:
    folders = write_quantized(tmp_path, "llama", LAYOUTS["W4A16 group"])
    declared = dict(named_parameters(load_model(folders.quantized)))
    down = declared["layers.1.mlp.down.weight"]
    assert down.shape == (32, 32) and down.dtype == jnp.uint8  # of [64, 32]
    assert declared["head.weight"].dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W4A16 group", *slow("W8A16 int", "FP8 block", "GPTQ 4")])
def test_an_engine_answers_as_with_the_plain_weights(name: str, tmp_path: Path) -> None:
    folders = write_quantized(tmp_path, "llama", LAYOUTS[name])
    answers = []
    for folder in folders:
        with jengine.LLM(folder, **ENGINE) as llm:
            [made] = llm.generate(
                {"prompt_token_ids": TOKENS},
                SamplingParams(temperature=0, max_tokens=6, ignore_eos=True),
            )
            answers.append(list(made.outputs[0].token_ids))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["int8", *slow("int4", "fp8")])
def test_a_plain_model_is_rounded_at_load_and_at_updates(name: str, tmp_path: Path) -> None:
    folders = write_quantized(tmp_path, "llama", LAYOUTS["FP8 block"])
    greedy = SamplingParams(temperature=0, max_tokens=1, logprobs=3)
    prompt = {"prompt_token_ids": TOKENS}
    with jengine.LLM(folders.plain, quantization=name, **ENGINE) as llm:
        first = llm.generate(prompt, greedy)[0].outputs[0]
        rounded = llm.engine.loaded.parameters()
        weight = rounded["layers.0.mlp.gate_up.weight"]
        given = dict(named_parameters(load_model(folders.plain)))
        plain = {path: one[...] for path, one in given.items()}
        assert weight.dtype == jnp.float32 and weight.shape == (32, 2, 64)
        error = jnp.abs(weight - plain["layers.0.mlp.gate_up.weight"]).max()
        assert 0 < float(error) < 0.2
        llm.update_params({path: jnp.zeros_like(one) for path, one in plain.items()})
        zeros = llm.generate(prompt, greedy)[0].outputs[0]
        assert zeros.logprobs != first.logprobs
        llm.update_params(plain)
        assert llm.generate(prompt, greedy)[0].outputs[0].token_ids == first.token_ids


DAMAGES: dict[str, tuple[str, Any, str]] = {
    "missing scale": (
        "W4A16 group",
        lambda tensors: tensors.pop(f"{DOWN}.weight_scale"),
        rf"tensor missing: '{DOWN}.weight_scale'",
    ),
    "scale of another shape": (
        "W4A16 group",
        lambda tensors: tensors.update({f"{DOWN}.weight_scale": np.ones((32, 3), np.float32)}),
        rf"'{DOWN}.weight_scale' is F32 \(32, 3\), expected .*\(32, 4\)",
    ),
    "plain weight": (
        "FP8 tensor",
        lambda tensors: tensors.update({f"{DOWN}.weight": np.ones((32, 64), np.float32)}),
        rf"'{DOWN}.weight' is F32 \(32, 64\), expected F8_E4M3",
    ),
    "order": (
        "GPTQ 4",
        lambda tensors: tensors.update({f"{DOWN}.g_idx": np.zeros(64, np.int32)}),
        rf"'{DOWN}.g_idx' gives inputs an order \(act-order",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_named(damage: str, tmp_path: Path) -> None:
    layout, change, message = DAMAGES[damage]
    folder = write_quantized(tmp_path, "llama", LAYOUTS[layout]).quantized
    change_tensors(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder)


def test_scales_that_are_not_finite_are_named(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, "llama", LAYOUTS["W8A16 int"]).quantized

    def spoil(tensors: Tensors) -> None:
        tensors[f"{DOWN}.weight_scale"][3] = np.nan

    change_tensors(folder, spoil)
    with pytest.raises(CheckpointError, match=rf"'{DOWN}.weight_scale' holds NaN"):
        load_model(folder)


def test_formats_that_differ_in_one_matrix_are_named(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, "llama", LAYOUTS["W8A16 int"]).quantized
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignore"].append("re:.*k_proj")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"q_proj' and .*k_proj' have different formats"):
        load_model(folder)


@pytest.mark.parametrize("name", ["GPTQ 4", *slow(*(name for name in LAYOUTS if name != "GPTQ 4"))])
def test_saved_it_loads_as_it_was(name: str, tmp_path: Path) -> None:
    family = "mixtral" if name in ("GPTQ 4", "FP8 of vLLM") else "llama"
    folder = write_quantized(tmp_path, family, LAYOUTS[name]).quantized
    model = load_model(folder)
    saved = tmp_path / "saved"
    save_model(with_saved_config(model), saved_config(model.config, "safetensors"), saved)
    again = load_model(saved)
    first, second = dict(named_parameters(model)), dict(named_parameters(again))
    assert first.keys() == second.keys()
    for path, parameter in first.items():
        np.testing.assert_array_equal(parameter[...], second[path][...], err_msg=path)
    method = json.loads((saved / "config.json").read_text())["quantization_config"]["quant_method"]
    assert method == "compressed-tensors"
    twice = tmp_path / "twice"
    save_model(with_saved_config(again), again.config, twice)
    assert (twice / "config.json").read_text() == (saved / "config.json").read_text()


def with_saved_config(model: LanguageModel) -> LanguageModel:
    """The model under the config that it is saved with."""
    config = saved_config(model.config, "safetensors")
    return with_values(abstract_model(config), dict(named_arrays(model)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int4", *slow("int8", "fp8")])
def test_a_model_rounded_at_load_is_saved_rounded(name: str, tmp_path: Path) -> None:
    plain = write_quantized(tmp_path, "mixtral", LAYOUTS["W8A16 int"]).plain
    with jengine.LLM(plain, quantization=name, dtype="bfloat16", **ENGINE) as llm:
        llm.save(tmp_path / "saved")
        expected = llm.engine.loaded.stored_parameters()
    found = dict(named_parameters(load_model(tmp_path / "saved")))
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path][...], array, err_msg=path)
    assert found["layers.0.mlp.router.weight"].dtype == jnp.bfloat16


@pytest.mark.slow
def test_orbax_holds_the_plain_weights_of_a_rounded_model(tmp_path: Path) -> None:
    folders = write_quantized(tmp_path, "llama", LAYOUTS["W8A16 int"])
    with jengine.LLM(folders.plain, quantization="int8", **ENGINE) as llm:
        llm.save(tmp_path / "orbax", "orbax")
    with jengine.LLM(tmp_path / "orbax", **ENGINE) as llm:
        assert llm.engine.model.quantization is None
    with (
        jengine.LLM(folders.quantized, **ENGINE) as llm,
        pytest.raises(UnsupportedFeature, match="Use 'safetensors'"),
    ):
        llm.save(tmp_path / "other", "orbax")


@pytest.mark.parametrize(
    ("quantization", "error", "message"),
    [
        ("bitsandbytes", UnsupportedFeature, "CUDA"),
        ("gguf", ConfigError, "config.json says nothing"),
        ("gptq", ConfigError, "config.json says nothing"),
        ("odd", ConfigError, "'int8'.*'fp8'"),
    ],
)
def test_other_names_of_quantization_are_refused(
    quantization: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    plain = write_quantized(tmp_path, "llama", LAYOUTS["W8A16 int"]).plain
    with pytest.raises(error, match=message):
        jengine.LLM(plain, quantization=quantization, **ENGINE)


def test_the_name_of_a_checkpoints_own_format_is_accepted(tmp_path: Path) -> None:
    folder = write_quantized(tmp_path, "llama", LAYOUTS["AWQ"]).quantized
    config = model_config(json.loads((folder / "config.json").read_text()))
    assert with_quantization(config, "awq") == with_quantization(config, "awq_marlin") == config
    with pytest.raises(ConfigError, match="quantized already, as awq"):
        with_quantization(config, "fp8")
