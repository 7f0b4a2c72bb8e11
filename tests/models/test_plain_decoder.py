"""A plain decoder's description writes the keys that it reads, with the defaults that it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jengine.errors import CheckpointError
from jengine.models.families.llama import DEFAULTS
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_write import written_attention, written_biases, written_window
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, BiasKey, PlainDecoder, one_window

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
