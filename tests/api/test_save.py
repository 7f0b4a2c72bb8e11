"""LLM.save: what it writes loads again with the same answers, and never half of it is there."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from jengine import LLM, SamplingParams
from jengine.assembly.model_source import load_parameters, open_model_source
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import CheckpointError, ConfigError, EngineDead
from jengine.models.parameter import named_parameters
from jengine.models.stages import stage_layout
from jengine.weights import save as save_room
from jengine.weights.folder import open_checkpoint
from jengine.weights.orbax_io import save_orbax
from jengine.weights.safetensors_io import load_model
from jengine.weights.save import new_folder
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.models.tiny_models import write_tiny_native

SETTINGS: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [64]},
}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = [5, 6, 7, 8] * 5
GENERATION = {"eos_token_id": [2, 7], "temperature": 0.5, "top_k": 9, "do_sample": True}
FORMATS = ["safetensors", "orbax"]


def tokens(llm: LLM) -> list[int]:
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].outputs[0].token_ids


def tensors(folder: Path) -> dict[str, bytes]:
    return {name: tensor.read().tobytes() for name, tensor in open_checkpoint(folder).items()}


def loaded(folder: Path, **settings: Any) -> tuple[jax.Array, ...]:
    """The parameters that an engine would have, without building one."""
    args = EngineArgs.checked("LLM", model=folder, skip_tokenizer_init=True, **settings)
    source = open_model_source(args.groups.model)
    places = StagePlaces(Placement(one_device_mesh()), stage_layout(source.config, 1))
    return tuple(value for _, value in load_parameters(args.groups.model, source, places, tqdm)[1])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, letters: PreTrainedTokenizerFast) -> Path:
    """A model folder with everything in it."""
    folder = write_tiny_native(tmp_path_factory.mktemp("whole"), "qwen3", dtype="bfloat16")
    letters.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, **SETTINGS) as engine:
        yield engine


@pytest.mark.parametrize("format", FORMATS)
def test_a_saved_model_is_the_same_model(
    format: Any, llm: LLM, folder: Path, tmp_path: Path
) -> None:
    llm.save(tmp_path / "deep" / "saved", format)
    assert names(tmp_path / "deep") == {"saved"}, "nothing temporary is left"
    with LLM(tmp_path / "deep" / "saved", **SETTINGS) as again:
        assert tokens(again) == tokens(llm)
        assert again.get_default_sampling_params() == llm.get_default_sampling_params()
        assert (
            again.engine.session.input_processor.limits == llm.engine.session.input_processor.limits
        )
        chat = [{"role": "user", "content": "hello"}]
        assert again.chat(chat, GREEDY)[0].prompt == llm.chat(chat, GREEDY)[0].prompt
        again.save(tmp_path / "third", "safetensors")
    assert tensors(tmp_path / "third") == tensors(folder)
    assert json.loads((tmp_path / "third" / "generation_config.json").read_text()) == GENERATION


@pytest.mark.slow
def test_transformers_loads_what_was_saved(llm: LLM, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    llm.save(tmp_path / "saved")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", output_loading_info=True, dtype="auto"
    )
    assert theirs.dtype == torch.bfloat16
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        best = theirs.float()(torch.tensor([PROMPT])).logits[0, -1].argmax()
    assert int(best) == tokens(llm)[0]
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "saved").decode([37]) == "C"


@pytest.mark.parametrize("format", FORMATS)
def test_live_models_and_new_parameters_are_saved(
    format: Any, folder: Path, tmp_path: Path
) -> None:
    """What is saved is in use now; without tokenizer and generation settings, none are written."""
    model = load_model(folder, dtype="float32")
    with LLM(model, skip_tokenizer_init=True, **SETTINGS) as live:
        graph, state = nnx.split(model)
        other = nnx.merge(graph, jax.tree.map(lambda leaf: leaf * 1.5, state))
        live.update_params(other)
        live.save(tmp_path / "saved", format)
    weights = "model.safetensors" if format == "safetensors" else "orbax"
    assert names(tmp_path / "saved") == {"config.json", weights}
    again = loaded(tmp_path / "saved")
    assert all(leaf.dtype == np.float32 for leaf in again)
    for (path, leaf), read in zip(named_parameters(other), again, strict=True):
        assert np.array_equal(leaf[...], read), path
    with pytest.raises(EngineDead):
        live.save(tmp_path / "late", format)


def test_parameters_that_were_donated_cannot_be_saved(folder: Path, tmp_path: Path) -> None:
    model = load_model(folder)
    with LLM(model, skip_tokenizer_init=True, **SETTINGS) as live:
        model.embed.weight.get_value().delete()
        with pytest.raises(ConfigError, match="donated"):
            live.save(tmp_path / "saved")
    assert names(tmp_path) == set()


def test_a_module_that_no_config_describes_is_not_saved(llm: LLM, tmp_path: Path) -> None:
    class Other(nnx.Module):
        def __init__(self) -> None:
            self.embed = nnx.Param(np.zeros((97, 32), np.float32), axes=("vocab", "embed"))

    with pytest.raises(CheckpointError, match=r"Qwen3ForCausalLM, which has other.*\n.*missing"):
        save_room.save_model(Other(), llm.engine.model, tmp_path / "saved")
    assert names(tmp_path) == set()


# --- which weights are loaded --------------------------------------------------------------


def test_the_format_asked_for_must_be_there(llm: LLM, tmp_path: Path) -> None:
    for format in FORMATS:
        llm.save(tmp_path / format, format)
    with pytest.raises(CheckpointError, match="no Orbax checkpoint in this folder"):
        LLM(tmp_path / "safetensors", load_format="orbax", **SETTINGS)
    with pytest.raises(CheckpointError, match=r"expected model\.safetensors"):
        LLM(tmp_path / "orbax", load_format="safetensors", **SETTINGS)
    with pytest.raises(ConfigError, match="'orbax'"):
        LLM(tmp_path / "orbax", load_format="pickle")


def test_safetensors_come_first_where_there_are_both(
    llm: LLM, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm.save(tmp_path / "both")
    graph, state = nnx.split(load_model(folder))
    save_orbax(nnx.merge(graph, jax.tree.map(lambda leaf: leaf * 1.5, state)), tmp_path / "both")
    served = llm.engine.loaded.leaves
    with caplog.at_level(logging.INFO):
        assert np.array_equal(loaded(tmp_path / "both")[0], served[0])
    assert "reading the safetensors" in caplog.text
    assert not np.array_equal(loaded(tmp_path / "both", load_format="orbax")[0], served[0])


def test_another_type_is_converted_only_if_asked_for(llm: LLM, tmp_path: Path) -> None:
    llm.save(tmp_path / "saved", "orbax")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    other = {name: "float32" for name in ("dtype", "torch_dtype") if name in config}
    (tmp_path / "saved" / "config.json").write_text(json.dumps({**config, **other}))
    with pytest.raises(CheckpointError, match=r"given bfloat16, expected float32.*'bfloat16'"):
        loaded(tmp_path / "saved")
    for dtype in ("float32", jnp.float32):
        leaf = loaded(tmp_path / "saved", dtype=dtype)[0]
        assert leaf.dtype == np.float32
        assert np.array_equal(leaf, llm.engine.loaded.leaves[0].astype(np.float32))


# --- where it is written -------------------------------------------------------------------


def test_a_folder_with_something_in_it_is_kept(llm: LLM, tmp_path: Path) -> None:
    llm.save(tmp_path / "saved", "orbax")
    with pytest.raises(CheckpointError, match=r"not empty.*overwrite=True"):
        llm.save(tmp_path / "saved")
    llm.save(tmp_path / "saved", "safetensors", overwrite=True)
    assert not (tmp_path / "saved" / "orbax").exists()
    assert names(tmp_path) == {"saved"}


def test_only_saved_models_are_ever_replaced(llm: LLM, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"holds no config\.json.*would be deleted"):
        llm.save(tmp_path, overwrite=True)
    llm.save(tmp_path / "run")
    (tmp_path / "run" / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="holds checkpoints"):
        llm.save(tmp_path / "run", overwrite=True)
    with pytest.raises(CheckpointError, match="is a file"):
        llm.save(tmp_path / "thesis.txt", overwrite=True)
    with pytest.raises(CheckpointError, match="given ''"):
        llm.save("", overwrite=True)
    with pytest.raises(ConfigError, match="'safetensors', 'orbax'"):
        llm.save(tmp_path / "new", "gguf")  # type: ignore[arg-type]
    assert names(tmp_path) == {"thesis.txt", "run"}


@pytest.mark.parametrize("replaces", [False, True])
def test_a_failure_leaves_what_was_there(
    replaces: bool, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "saved"
    if replaces:
        llm.save(target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def fails(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine.tokenizer.hf, "save_pretrained", fails)
        with pytest.raises(OSError, match="no space left"):
            llm.save(target, overwrite=True)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space left"):
        rename = Path.rename
        patched.setattr(
            Path, "rename",
            lambda self, to: fails() if self.suffix == ".partial" else rename(self, to),
        )  # fmt: skip
        llm.save(target, overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert names(tmp_path) == ({"saved"} if replaces else set())


def test_links_and_empty_folders_are_written_through(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with new_folder(tmp_path / "link") as folder:
        (folder / "config.json").write_text("{}")
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == {"config.json"}


def test_a_model_can_be_saved_over_itself(llm: LLM, tmp_path: Path) -> None:
    llm.save(tmp_path / "home")
    with LLM(tmp_path / "home", **SETTINGS) as again:
        again.save(tmp_path / "home", "orbax", overwrite=True)
        assert tokens(again) == tokens(llm)
    assert names(tmp_path / "home") >= {"generation_config.json", "orbax", "tokenizer.json"}
    held = llm.engine.loaded.parameters()
    for leaf, read in zip(held.values(), loaded(tmp_path / "home"), strict=True):
        assert np.array_equal(leaf, read)
