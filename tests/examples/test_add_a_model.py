"""The recipe for adding a model: its family scores as transformers does, and errors lead to it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine.errors import CheckpointError, ConfigError
from jengine.models import registry
from jengine.weights.folder import read_model_config
from jengine.weights.safetensors_io import load_model, save_pretrained

EXAMPLE = Path(__file__).parents[2] / "examples" / "07_add_a_model.py"


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("add_a_model", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    yield


def folder_with(path: Path, **settings: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("inner", [None, 40])
@pytest.mark.parametrize("rotated", [8, 16])
def test_it_scores_as_transformers_does(
    recipe: ModuleType, tmp_path: Path, inner: int | None, rotated: int
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    settings = {key: value for key, value in recipe.TINY.items() if key != "architectures"}
    config = transformers.GPTJConfig(
        **{**settings, "n_inner": inner, "rotary_dim": rotated, "layer_norm_epsilon": 0.01}
    )
    torch.manual_seed(0)
    model = transformers.GPTJForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms are born as ones, biases as zeros
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(tmp_path / "theirs")
    tokens = np.random.default_rng(0).integers(0, 97, (2, 40))
    with torch.no_grad():
        wanted = model(torch.as_tensor(tokens)).logits.numpy()

    jengine.register_model(recipe.GPTJ())
    ours = load_model(tmp_path / "theirs", dtype="float32")
    score = jax.jit(lambda tokens: ours.score(tokens))
    np.testing.assert_allclose(score(jnp.asarray(tokens)), wanted, atol=1e-4)
    save_pretrained(ours, tmp_path / "ours")
    again = transformers.GPTJForCausalLM.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        np.testing.assert_allclose(again(torch.as_tensor(tokens)).logits, wanted, atol=1e-5)


def test_what_it_cannot_honour_is_refused(recipe: ModuleType) -> None:
    jengine.register_model(recipe.GPTJ())
    with pytest.raises(CheckpointError, match="'tie_word_embeddings': given True, expected false"):
        registry.model_config({**recipe.TINY, "tie_word_embeddings": True})


def test_an_unknown_architecture_leads_to_the_recipe(recipe: ModuleType, tmp_path: Path) -> None:
    unknown = {**recipe.TINY, "architectures": ["NovelForCausalLM"]}
    folder = folder_with(tmp_path / "model", **unknown)
    with pytest.raises(CheckpointError) as error:
        jengine.LLM(folder, load_format="dummy", skip_tokenizer_init=True)
    text = str(error.value)
    assert "'NovelForCausalLM' is not supported" in text
    assert all(architecture in text for architecture in registry.FAMILIES)
    assert f"examples/{EXAMPLE.name}" in text and "'Add a model' in CONTRIBUTING.md" in text
    folder_with(folder, **{**recipe.TINY, "auto_map": {"AutoConfig": "configuration.Config"}})
    with pytest.raises(CheckpointError, match="Code from a model folder is never run") as error:
        read_model_config(folder)
    assert f"examples/{EXAMPLE.name}" in str(error.value)


def test_a_registered_family_is_supported_until_it_is_replaced(recipe: ModuleType) -> None:
    family = recipe.GPTJ()
    jengine.register_model(family)
    jengine.register_model(family)
    assert registry.supported()[-1] == "GPTJForCausalLM"
    assert not registry.model_config(recipe.TINY).layers[0].ffn.gated

    class Other(recipe.GPTJ):
        def read_config(self, hf: Any) -> Any:
            raise CheckpointError("read by the other")

    jengine.register_model(Other())
    with pytest.raises(CheckpointError, match="read by the other"):
        registry.model_config(recipe.TINY)


def test_what_is_no_family_is_refused(recipe: ModuleType) -> None:
    class Half:
        ARCHITECTURES = ("HalfForCausalLM",)
        MODELS = "Half"

        def read_config(self, hf: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="a family needs NAMES, write_config"):
        jengine.register_model(Half())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"give an instance: register_model\(GPTJ\(\)\)"):
        jengine.register_model(recipe.GPTJ)
    family = recipe.GPTJ()
    for names in ("GPTJForCausalLM", (), [1]):
        family.ARCHITECTURES = names
        with pytest.raises(ConfigError, match="expected a tuple of class names"):
            jengine.register_model(family)
    family.ARCHITECTURES = ("GPTJForCausalLM", "LlamaForCausalLM")
    with pytest.raises(ConfigError, match="LlamaForCausalLM: built in"):
        jengine.register_model(family)
    assert registry.supported() == tuple(registry.FAMILIES)
