"""Adapters in PEFT's files: merged as PEFT defines, and refused by what does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.errors import CheckpointError
from jengine.lora.adapter import without_group
from jengine.lora.peft_files import places_of, read_adapter
from jengine.lora.store import read_live_adapter
from jengine.models.parameter import named_parameters
from jengine.weights.live import named_arrays
from jengine.weights.safetensors_file import read_header
from jengine.weights.safetensors_io import load_model
from tests.lora.adapters import (
    ATTENTION,
    MLP,
    PREFIX,
    RECURRENT,
    write_adapter,
    write_merged,
    write_stacked,
)
from tests.models.tiny_models import write_tiny_native
from tests.weights.quantized_models import Tensors, write_tensors

Q_PROJ = f"{PREFIX}model.layers.0.self_attn.q_proj"
TARGETS: dict[str, tuple[str, ...]] = {
    "llama": (*ATTENTION, *MLP, "lm_head"),
    "qwen3": ("q_proj", "v_proj", "down_proj"),
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "mixtral": (*ATTENTION, "gate", "w1", "w2", "w3"),
    "qwen3_moe": ("v_proj", "mlp.gate", "3.up_proj", "down_proj"),
    "deepseek_v3": ("mlp.gate", *MLP),  # shared experts too
    **RECURRENT,
    "qwen3_5": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", *ATTENTION),
}


@pytest.mark.parametrize("family", TARGETS)
def test_merged_it_is_the_sum_that_peft_defines(family: str, tmp_path: Path) -> None:
    more = {"pad_token_id": 0} if family == "phi3" else {}
    base = write_tiny_native(tmp_path / "base", family, **more)
    added = write_adapter(tmp_path / "adapter", base, TARGETS[family])
    scaled = {name: 2.0 * part for name, part in added.items()}  # alpha / r
    check_merged(tmp_path, base, scaled)


def test_ranks_and_scales_by_pattern(tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "llama")
    added = write_adapter(
        tmp_path / "adapter", base, ranks={"q_proj": 2, "down_proj": 8}, use_rslora=True,
        rank_pattern={"q_proj": 2, r"layers\.\d+\.mlp\.down_proj": 8},
        alpha_pattern={"0.mlp.down_proj": 3.0, "odd_q_proj": 100.0},
    )  # fmt: skip

    def scale(name: str) -> float:
        if "down_proj" in name:
            return (3.0 if ".0." in name else 8.0) / math.sqrt(8)
        return 8.0 / math.sqrt(2 if "q_proj" in name else 4)

    check_merged(tmp_path, base, {name: scale(name) * part for name, part in added.items()})
    adapter = read_adapter(tmp_path / "adapter", load_model(base).config, max_rank=8)
    assert adapter.rank == 8
    assert adapter.parts["layers.0.attention.qkv"].rank == 2 + 4 + 4


def check_merged(folder: Path, base: Path, added: dict[str, np.ndarray]) -> None:
    model = load_model(base)
    adapter = read_adapter(folder / "adapter", model.config, max_rank=8)
    found = adapter.merged(named_arrays(model))
    expected = load_model(write_merged(folder / "merged", base, added))
    for path, parameter in named_parameters(expected):
        np.testing.assert_allclose(found[path], parameter[...], rtol=1e-5, atol=1e-5, err_msg=path)
    changed = [path for path, array in named_arrays(model).items() if found[path] is not array]
    adapted = {without_group(path)[0] for path in adapter.parts}
    assert {path.removesuffix(".weight") for path in changed} == adapted


def without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def with_array(name: str, array: np.ndarray) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: array})


ONES = np.ones((4, 32), np.float32)
DAMAGES: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "half of a pair": (without(f"{Q_PROJ}.lora_B.weight"), rf"missing: '{Q_PROJ}.lora_B.weight'"),
    "another shape": (
        with_array(f"{Q_PROJ}.lora_A.weight", ONES[:, :30]),
        rf"'{Q_PROJ}.lora_A.weight' is F32 \(4, 30\), expected .*\(4, 32\)",
    ),
    "NaN": (with_array(f"{Q_PROJ}.lora_A.weight", ONES * np.nan), "holds NaN"),
    "an unknown tensor": (with_array("odd.lora_A.weight", ONES), "'odd.lora_A.weight' is no"),
    "an embedding": (
        with_array(f"{PREFIX}model.embed_tokens.lora_A.weight", ONES),
        r"missing: '.*embed_tokens.lora_embedding_A'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_named(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    base = write_tiny_native(tmp_path / "base", "llama")
    folder = tmp_path / "adapter"
    write_adapter(folder, base, ATTENTION)
    tensors = tensors_of(folder)
    change(tensors)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    with pytest.raises(CheckpointError, match=message):
        read_adapter(folder, load_model(base).config, max_rank=8)


def tensors_of(folder: Path) -> Tensors:
    file = folder / "adapter_model.safetensors"
    return {name: np.array(tensor.read()) for name, tensor in read_header(file).items()}


def test_a_rank_above_the_limit_is_named(tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "llama")
    write_adapter(tmp_path / "adapter", base, ("q_proj",))
    with pytest.raises(CheckpointError, match=r"q_proj' has rank 4, .*max_lora_rank=2"):
        read_adapter(tmp_path / "adapter", load_model(base).config, max_rank=2)


BOTH = ("gate_up_proj", "down_proj")


@pytest.mark.parametrize(
    ("family", "parameters"),
    [("gpt_oss", BOTH), ("qwen3_moe", BOTH), ("llama4", BOTH), ("qwen3_moe", BOTH[:1]),
     ("gpt_oss", BOTH[1:])],
)  # fmt: skip
def test_a_pair_for_all_experts_is_one_for_each(
    family: str, parameters: tuple[str, ...], tmp_path: Path
) -> None:
    """As PEFT's target_parameters have it: with two, the inner wrapper has gate and up."""
    base = write_tiny_native(tmp_path / "base", family)
    added = write_stacked(tmp_path / "adapter", base, parameters)
    check_merged(tmp_path, base, {name: 2.0 * part for name, part in added.items()})


def test_modules_may_have_the_names_of_a_newer_transformers(tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "mixtral")
    added = write_adapter(tmp_path / "adapter", base, ("gate", "0.w1", "w2"))
    newer = {name.replace(".block_sparse_moe.", ".mlp."): one
             for name, one in tensors_of(tmp_path / "adapter").items()}  # fmt: skip
    write_tensors(tmp_path / "adapter" / "adapter_model.safetensors", newer)
    check_merged(tmp_path, base, {name: 2.0 * part for name, part in added.items()})


def test_arrays_of_a_trainer_may_have_all_experts(tmp_path: Path) -> None:
    model = load_model(write_tiny_native(tmp_path, "qwen3_moe"))
    weights = named_arrays(model)
    path = "layers.1.mlp.gate_up"
    shape = weights[f"{path}.weight"].shape  # [experts, inputs, outputs, 2]
    draw = np.random.default_rng(0)
    down, up = draw.normal(size=(*shape[:2], 3)), draw.normal(size=(shape[0], 3, *shape[2:]))
    given = {f"{path}.a": down, f"{path}.b": up}
    places = places_of(model.config)
    found = read_live_adapter(given, places, None, max_rank=4).merged(weights)[f"{path}.weight"]
    truth = np.asarray(weights[f"{path}.weight"]) + np.einsum("eir,erog->eiog", down, up)
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"gate_up.a' is \(2, .*expected 8 matrices"):
        read_live_adapter({f"{path}.a": down[:2]}, places, None, max_rank=4)


def test_a_pair_for_all_experts_must_say_of_what(tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "gpt_oss")
    write_stacked(tmp_path / "adapter", base, BOTH[:1])
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "target_parameters": None}))
    with pytest.raises(CheckpointError, match=r"experts' adapts .*does not say which of gate_up"):
        read_adapter(tmp_path / "adapter", load_model(base).config, max_rank=8)


def test_modules_that_no_adapter_changes_are_named(tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "mixtral")
    write_adapter(tmp_path / "adapter", base, ("w1",))
    tensors = tensors_of(tmp_path / "adapter")
    odd = {name.replace("experts.0.w1", "experts.9.w1"): one for name, one in tensors.items()}
    write_tensors(tmp_path / "adapter" / "adapter_model.safetensors", odd)
    with pytest.raises(CheckpointError, match=r"cannot change here: .*experts\.9\.w1.*experts and"):
        read_adapter(tmp_path / "adapter", load_model(base).config, max_rank=8)


REFUSED: dict[str, dict[str, Any]] = {
    "use_dora": {"use_dora": True},
    "bias": {"bias": "all"},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "init_lora_weights": {"init_lora_weights": "pissa"},
    "peft_type": {"peft_type": "LOHA"},
    "'r'": {"r": 0},
    "rank_pattern": {"rank_pattern": {"(": 4}},
    "lora_alpha": {"lora_alpha": "8"},
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_changes_the_meaning_is_refused_by_name(key: str, tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "llama")
    folder = tmp_path / "adapter"
    write_adapter(folder, base, ("q_proj",))
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **REFUSED[key]}))
    with pytest.raises(CheckpointError, match=key):
        read_adapter(folder, load_model(base).config, max_rank=8)


def test_a_folder_without_an_adapter_says_what_it_holds(tmp_path: Path) -> None:
    base = write_tiny_native(tmp_path / "base", "llama")
    with pytest.raises(CheckpointError, match=r"expected adapter_model.safetensors, found config"):
        read_adapter(base, load_model(base).config, max_rank=8)
