"""A plain decoder's description writes the keys that it reads, with the defaults that it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jengine.errors import CheckpointError
from jengine.models.families.llama import DEFAULTS
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_write import written_attention, written_biases, written_window
from jengine.models.reading.keys import ExpertKeys, behind_dense, flag, integer
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, BiasKey, PlainDecoder, one_window
from jengine.models.registry import model_config, write_config

HF: dict[str, Any] = {"architectures": ["Own"], "num_hidden_layers": 2}
PLAIN = PlainDecoder(
    "own",
    replace(DEFAULTS, partial_rotary=0.5),
    (BiasKey("some_biases", ("output", "mlp"), True), BiasKey("other_biases", ("qkv",))),
    one_window(8),
    attention={"qk_norm": "head"},
    mlp={"gated": False},
    model={"norm": "layer"},
)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"some_biases": False, "other_biases": True},
        {"sliding_window": None},
        {"partial_rotary_factor": 1.0},
    ],
)
def test_what_is_read_is_written(given: dict[str, Any]) -> None:
    config = PLAIN.read_config({**HF, **given})
    written = PLAIN.write_config(config)
    assert {key: written[key] for key in given} == given
    assert written["model_type"] == "own"
    assert PLAIN.read_config(written) == config


def test_defaults_and_fields_that_all_models_share() -> None:
    config = PLAIN.read_config(HF)
    attention, rope = written_attention(config), written_attention(config).rope
    assert (attention.qkv_bias, attention.output_bias, written_biases(config)) == (0, 1, 1)
    assert rope is not None and rope.rotated == attention.head_dim // 2
    assert (attention.qk_norm, config.norm, written_window(config)) == ("head", "layer", 8)
    whole = PlainDecoder("own", DEFAULTS, (ATTENTION_BIAS,)).read_config(HF)
    assert not written_attention(whole).qkv_bias and written_window(whole) is None


def test_a_flag_with_one_supported_value() -> None:
    Fields({}).expect("gate", True)
    Fields({"gate": True}).expect("gate", True)
    with pytest.raises(CheckpointError, match="'gate': given False, expected true, as in all"):
        Fields({"gate": False}).expect("gate", True, ", as in all published models")


EXPERTS = ExpertKeys(
    8,
    2,
    ("num_experts", "num_local_experts"),
    {"intermediate_size": integer("moe_size", 24)},
    {"normalize": flag("normalizes", False)},
    layers=behind_dense("dense_layers", 1),
)
KEYED = PLAIN._replace(
    model_keys={"block": flag("parallel", False, true="parallel", false="serial")},
    experts=EXPERTS,
    expected=(("gate", False, ", as in all"),),
    also_written={"pad_token_id": None},
)


@pytest.mark.parametrize(
    "given",
    [
        {"num_experts": 4, "moe_size": 16, "normalizes": True, "dense_layers": 0},
        {"parallel": True, "dense_layers": 2},
    ],
)
def test_keys_of_experts_and_of_the_model_are_written_as_they_are_read(
    given: dict[str, Any],
) -> None:
    config = KEYED.read_config({**HF, **given})
    written = KEYED.write_config(config)
    assert {key: written[key] for key in (*given, "pad_token_id")} == {
        **given,
        "pad_token_id": None,
    }
    assert KEYED.read_config(written) == config
    assert config.has_experts == (given["dense_layers"] < 2)
    with pytest.raises(CheckpointError, match="'gate': given True, expected false, as in all"):
        KEYED.read_config({**HF, "gate": True})
    with pytest.raises(CheckpointError, match="'moe_size': given 0, expected an integer from 1"):
        KEYED.read_config({**HF, "moe_size": 0})


@pytest.mark.parametrize(
    "given",
    [
        {
            "architectures": ["BambaForCausalLM"],
            "attn_layer_indices": [1],
            "partial_rotary_factor": 1.0,
        },
        {"architectures": ["Glm4MoeForCausalLM"], "first_k_dense_replace": 2},
        {"architectures": ["AXK1ForCausalLM"], "mlp_layer_types": ["dense", "dense"]},
    ],
    ids=["whole heads", "dense by number", "dense by name"],
)
def test_models_that_use_none_of_what_their_family_adds_are_written(given: dict[str, Any]) -> None:
    config = model_config({**given, "num_hidden_layers": 2})
    assert model_config(write_config(config)) == config
