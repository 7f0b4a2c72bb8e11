"""GGUF files of every architecture hold the configs and tensors of the folders they stand for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.gguf.architectures import ARCHITECTURES, NAMES
from jengine.weights.gguf.files import open_gguf
from jengine.weights.safetensors_io import load_model
from tests.models.plain_logits import plain_logits
from tests.weights.gguf.architectures import FAMILIES, write_architecture
from tests.weights.gguf.hybrid_models import HYBRIDS


@pytest.mark.parametrize("family", FAMILIES)
def test_config_and_tensors_are_those_of_the_folder(family: str, tmp_path: Path) -> None:
    files = write_architecture(tmp_path, family)
    own, other = read_model_config(files.gguf), read_model_config(files.folder)
    free = {"dtype": other.dtype, "initializer_range": other.initializer_range}
    assert dataclasses.replace(own, **free) == other
    found, expected = open_checkpoint(files.gguf), open_checkpoint(files.folder)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tuple(found[name].shape) == tuple(tensor.shape), name
        np.testing.assert_allclose(found[name].read(), tensor.read(), atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("experts", "has_norms"), [(16, True), (128, False)])
def test_the_larger_llama_4_has_no_norms_of_heads(
    experts: int, has_norms: bool, tmp_path: Path
) -> None:
    sizes = {"num_local_experts": experts, "use_qk_norm": has_norms}
    files = write_architecture(tmp_path, "llama4", **sizes)
    assert read_model_config(files.gguf).layers == read_model_config(files.folder).layers


def test_every_architecture_is_tested() -> None:
    encoders = {name for name, one in ARCHITECTURES.items() if one.sees_ahead}  # `test_encoders`
    decoders = {name for name, _ in FAMILIES.values()} | {*HYBRIDS.values()}
    assert decoders | encoders == {*NAMES}
    # One more, the larger Llama 4, has a test of its own.
    assert len(ARCHITECTURES) <= len(FAMILIES) + len(HYBRIDS) + len(encoders) + 1


# Tensors that converters take apart or join before they name them.
APART = ("kv_b_proj", "gate_up_proj", "input_linear", "shared_mlp", ".experts.")
# What converters change in names before they look them up.
CHANGED = (("transformer.", ""), ("correction_bias", "correction.bias"), ("sinks", "sinks.weight"))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_have_the_names_of_ggufs_own_table(family: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    files = write_architecture(tmp_path, family)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(kinds[FAMILIES[family][0]], 8)
    written = open_gguf(files.gguf).tensors
    for name in open_checkpoint(files.folder):
        if any(part in name for part in APART):
            continue
        tried = [name, *(name.replace(one, other) for one, other in CHANGED)]
        found = {table.get_name(one, (".weight", ".bias")) for one in tried}
        assert not found.isdisjoint(written), name


TOKENS = [3, 5, 7, 11, 13, 17, 19, 23]
WIDE: dict[str, Any] = {"head_dim": 256, "query_pre_attn_scalar": 256}
# Sizes that transformers' reader takes from its defaults, not from files.
AS_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"moe_intermediate_size": 768},
    "lfm2": {},
    "gemma2": WIDE,
    "gemma3": WIDE,
    "nemotron": {"head_dim": 8},
    "stablelm": {"partial_rotary_factor": 0.25, "num_attention_heads": 2},
    "starcoder2": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", AS_TRANSFORMERS)
def test_transformers_reads_the_same(family: str, tmp_path: Path) -> None:
    for name in ("gguf", "accelerate"):
        pytest.importorskip(name)
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    file = write_architecture(tmp_path, family, **AS_TRANSFORMERS[family]).gguf
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].float().numpy()
    found = plain_logits(load_model(file, dtype="float32"), TOKENS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
