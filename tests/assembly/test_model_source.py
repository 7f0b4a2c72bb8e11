"""What is known of a model before its parameters are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from flax import nnx

from jengine.assembly.model_source import open_model_source
from jengine.assembly.settings.args import EngineArgs
from jengine.demo import model_path
from jengine.errors import CheckpointError, ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo model, whose generation_config.json a test may change."""
    return Path(shutil.copytree(model_path(), tmp_path / "demo"))


def test_only_the_tokenizers_own_end_token_ends_without_a_reason(folder: Path) -> None:
    source = open_model_source(EngineArgs(folder).groups.model)
    assert (source.eos_token_ids, source.stop_token_ids) == ((2,), (0,))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2, 10**6]}))
    source = open_model_source(EngineArgs(folder).groups.model)
    assert (source.eos_token_ids, source.stop_token_ids) == ((2,), (9,))
    source = open_model_source(EngineArgs(folder, skip_tokenizer_init=True).groups.model)
    assert (source.eos_token_ids, source.stop_token_ids) == ((2,), (9,)), "the model's own"


def test_entries_of_the_generation_config_can_be_overridden() -> None:
    override = {"temperature": 0.25, "eos_token_id": 7}
    source = open_model_source(EngineArgs("demo", override_generation_config=override).groups.model)
    assert source.generation["temperature"] == 0.25
    assert source.generation["top_p"] == 0.9
    assert source.stop_token_ids == (7,)
    alone = EngineArgs("demo", override_generation_config=override, generation_config="vllm")
    assert open_model_source(alone.groups.model).generation == {
        "temperature": 0.25,
        "eos_token_id": (7,),
    }


def test_a_wrong_override_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no key 'temprature'.*Did you mean 'temperature'"):
        open_model_source(
            EngineArgs("demo", override_generation_config={"temprature": 1}).groups.model
        )
    with pytest.raises(CheckpointError, match="override_generation_config: 'top_p': given 2"):
        open_model_source(EngineArgs("demo", override_generation_config={"top_p": 2}).groups.model)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (3, r"model is a int \(3\): expected the path of a folder, 'demo', or a flax.nnx module"),
        (b"demo", "model is a bytes"),
        ({"embed": 1}, "model is a dict: parameters without the model.*params="),
        (nnx.State({}), "model is a State: parameters without the model.*or the module itself"),
        (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), r"another library \(Linear\).*jengine.from_hf"),
        (nnx.split(nnx.Dict()), r"give nnx.merge\(graphdef, state\)"),
    ],
)
def test_what_is_no_model(model: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        open_model_source(EngineArgs(model).groups.model)
