"""MTP layers of quantized checkpoints: read as the plain checkpoints that these stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine import SamplingParams
from jengine.assembly.mtp_layer import mtp_layer
from jengine.errors import CheckpointError
from jengine.models.context import whole_sequences
from jengine.models.parameter import named_parameters
from jengine.weights.abstract import with_values
from jengine.weights.folder import open_checkpoint, read_model_config
from jengine.weights.safetensors_io import check_tensors, load_model, stream
from tests.api.draft_heads import heads_engine, write_mtp_model, write_tensors
from tests.api.engines import random_prompts
from tests.api.test_draft_heads import check_answers, decoded_drafts
from tests.marks import slow
from tests.weights.quantized_models import LAYOUTS, Folders, Layout, is_quantized

ROOTS = {"glm4_moe": "model.layers.2.", "deepseek_v3": "model.layers.3.", "qwen3_next": "mtp."}
WIDTHS = {"moe_intermediate_size": 32}  # that groups divide
PLAIN_IN_QWEN = ["lm_head", "re:.*gate$", "re:.*in_proj_"]  # by `is_coded`
Chosen = Callable[[str], bool]


def is_coded(name: str) -> bool:
    """What published files quantize: all but the matrix before the layer."""
    return is_quantized(name) and "eh_proj" not in name


def write_both(
    folder: Path, family: str, layout: Layout, chosen: Chosen = is_coded, **config: Any
) -> Folders:
    """A checkpoint with its MTP layer, quantized where a tensor's name is chosen, and the plain one
    that it stands for."""
    plain = write_mtp_model(folder / "plain", family, intermediate_size=64, **WIDTHS)
    stored, stands_for = {}, {}
    for name, tensor in open_checkpoint(plain).items():
        array = np.array(tensor.read())
        stored[name] = stands_for[name] = array
        if chosen(name):
            made = layout.make(array)
            del stored[name]
            module = name.removesuffix(".weight")
            stored.update({f"{module}.{one}": found for one, found in made.tensors.items()})
            stands_for[name] = made.weight
    quantized = folder / "quantized"
    quantized.mkdir()
    contiguous = {name: np.ascontiguousarray(one) for name, one in stored.items()}
    write_tensors(
        quantized, {name: contiguous[name].reshape(stored[name].shape) for name in stored}
    )
    write_tensors(plain, stands_for)
    hf = json.loads((plain / "config.json").read_text())
    hf["quantization_config"] = {**layout.config, **config}
    (quantized / "config.json").write_text(json.dumps(hf))
    return Folders(quantized, plain)


def read_layer(folder: Path) -> Any:
    """The layer in a folder, with its values."""
    hf, config = json.loads((folder / "config.json").read_text()), read_model_config(folder)
    heads, tensors = mtp_layer(folder, hf, config, open_checkpoint(folder))
    check_tensors(folder, tensors, heads.pieces, heads.ignored)
    return with_values(heads.model, dict(stream(tensors, heads.model, heads.pieces)))


def coded(layer: Any) -> set[str]:
    """The paths of its quantized weights."""
    paths = dict(named_parameters(layer))
    return {path.removesuffix(".scale") for path in paths if path.endswith(".scale")}


def outcome(layer: Any, target: Any) -> np.ndarray:
    """The layer's hidden states for tokens and hidden states drawn at random."""
    draw = np.random.default_rng(3)
    tokens = jnp.asarray(draw.integers(3, 97, (1, 9)))
    hidden = jnp.asarray(draw.normal(size=(1, 9, 32)), jnp.float32)
    run = jax.jit(lambda *given: layer(*given, whole_sequences((1, 9)), target))
    return np.asarray(run(tokens, hidden))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("glm4_moe", "W4A16 channel"), ("glm4_moe", "GPTQ 8"), ("deepseek_v3", "DeepSeek FP8"),
        ("deepseek_v3", "FP8 block"), ("qwen3_next", "W8A16 int"), ("qwen3_next", "DeepSeek FP8"),
    ],
)  # fmt: skip
def test_the_layer_is_that_of_the_plain_checkpoint(
    family: str, layout: str, tmp_path: Path
) -> None:
    folders = write_both(tmp_path, family, LAYOUTS[layout])
    layer, target = read_layer(folders.quantized), load_model(folders.plain)
    assert {"layers.0.attention.out", "layers.0.mlp.down"} <= coded(layer)
    assert "fc" not in coded(layer)
    wanted, found = outcome(read_layer(folders.plain), target), outcome(layer, target)
    if LAYOUTS[layout].rounds_activations:
        assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("whole", [False, *slow(True)])
def test_what_the_file_holds_plain_is_plain(whole: bool, tmp_path: Path) -> None:
    """The matrix before the layer may be quantized too, and the whole layer may have been left."""
    layout, root = LAYOUTS["W8A16 int"], ROOTS["glm4_moe"]

    def chosen(name: str) -> bool:
        return is_quantized(name) and not (whole and name.startswith(root))

    folders = write_both(tmp_path, "glm4_moe", layout, chosen)
    layer, target = read_layer(folders.quantized), load_model(folders.plain)
    assert ("fc" in coded(layer)) is not whole
    assert bool(coded(layer)) is not whole
    wanted = outcome(read_layer(folders.plain), target)
    np.testing.assert_allclose(outcome(layer, target), wanted, rtol=1e-3, atol=1e-3)


def test_modules_that_config_json_ignores_are_not_decoded(tmp_path: Path) -> None:
    name = f"{ROOTS['glm4_moe']}self_attn.o_proj"
    layout = LAYOUTS["W8A16 int"]
    ignored = [*layout.config["ignore"], name]
    folders = write_both(
        tmp_path / "plain", "glm4_moe", layout,
        lambda one: is_coded(one) and not one.startswith(name), ignore=ignored,
    )  # fmt: skip
    assert "layers.0.attention.out" not in coded(read_layer(folders.quantized))
    folders = write_both(tmp_path / "quantized", "glm4_moe", layout, ignore=ignored)
    with pytest.raises(CheckpointError, match=r"no place for: self_attn.o_proj.weight_scale"):
        read_layer(folders.quantized)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    [("glm4_moe", "W4A16 channel"), ("deepseek_v3", "DeepSeek FP8"), ("qwen3_next", "FP8 channel")],
)
def test_engines_draft_by_it(family: str, layout: str, tmp_path: Path) -> None:
    """The tokens of plain decoding, and the drafts of the plain checkpoint's layer."""
    ignored = {"ignore": PLAIN_IN_QWEN} if family == "qwen3_next" else {}
    folders = write_both(tmp_path, family, LAYOUTS[layout], **ignored)
    check_answers(folders.quantized, folders.quantized, "mtp")
    if LAYOUTS[layout].rounds_activations:
        return
    model, layer = load_model(folders.plain), read_layer(folders.plain)
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    with heads_engine(folders.quantized, folders.quantized, "mtp", variant="greedy") as llm:
        for prompt in random_prompts(1, 40, seed=5):
            [output] = llm.generate([prompt], sampling)
            found = np.asarray(llm.engine.loaded.state.next_drafts)[0].tolist()
            assert found == decoded_drafts(model, layer, prompt + output.outputs[0].token_ids)
