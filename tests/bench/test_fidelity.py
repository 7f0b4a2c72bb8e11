"""Random configs of every family: all that is read varies, and transformers answers the same."""

from __future__ import annotations

import argparse
import json
import os
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from jengine.bench.fidelity import search
from jengine.bench.fidelity.__main__ import main
from jengine.bench.fidelity.check import Found, check
from jengine.bench.fidelity.draws import drawn, varied_keys
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS, environment_of
from jengine.bench.fidelity.search import Row, one_draw
from jengine.bench.fidelity.transformers_process import Refused, Transformers
from jengine.errors import CheckpointError
from jengine.models.architectures import FAMILIES as ARCHITECTURES
from jengine.models.registry import model_config
from jengine.models.unread import read_keys
from tests.models.tiny_models import config_class

pytest.importorskip("torch")
pytest.importorskip("transformers")

# Keys that no draw varies, and why.
UNVARIED = {
    "architectures": "names the family",
    "dtype": "the implementations say it",
    "torch_dtype": "dtype, by the name of transformers 4",
    "initializer_range": "weights are there", "init_std": "weights are there",
    "quantization_config": "weights of its own: tests/quantization",
    **dict.fromkeys(
        ("rope_theta", "rope_scaling", "partial_rotary_factor", "rope_local_base_freq",
         "sliding_window_pattern", "num_local_experts", "moe_layers", "per_layer_config",
         "text_config"),
        "another name of what varies, as other files have it: tests/models/test_hf_config.py",
    ),
    **dict.fromkeys(
        ("add_cross_attention", "scale_attn_by_inverse_layer_idx", "clip_qkv", "index_topk",
         "moe_layer_freq", "scoring_func", "swiglu_alpha", "swiglu_limit", "qk_layernorm",
         "_remove_final_layer_norm", "do_layer_norm_before", "layer_norm_elementwise_affine",
         "word_embed_proj_dim", "mamba_hidden_act", "residual_in_fp32", "slow_but_exact",
         "apply_residual_connection_post_layernorm", "expansion_ratio", "no_bias",
         "enable_moe_block", "use_bidirectional_attention"),
        "any other value is refused, or asks for another kind of model",
    ),
}  # fmt: skip
ACTIVATION = {"hidden_act"}  # the only one that these families have
OWN_UNVARIED: dict[str, set[str]] = {
    "gemma": {"hidden_act", "hidden_activation"},
    "gemma3": {"attn_logit_softcapping"},
    "gemma4": {"num_hidden_layers"},  # which layers there are is drawn in other ways
    "phi3": {"head_dim"}, "stablelm": {"head_dim"},  # transformers' models have no such key
    "gpt_neox": {"head_dim", "num_key_value_heads"},
    "phi": {"tie_word_embeddings"},
    "deepseek_v2": {"mlp_bias", "rope_interleave", "norm_topk_prob"},  # true is refused
    "deepseek_v3": {"topk_method"},
    "qwen2_moe": {"use_sliding_window"}, "smollm3": {"use_sliding_window"},
    "llama4": {"attention_chunk_size"},
    "cohere2": {"use_qk_norm"},
    "mpt": {"logit_scale"},
    "minicpm3": {"mlp_bias"},
    "minimax_m2": {"shared_intermediate_size"},
    "nemotron_h": {"rope_parameters", "tie_word_embeddings"},  # no rotation, and no tied head
    "olmoe": {"head_dim"},
    "qwen3_5_moe": {"norm_topk_prob", *ACTIVATION},  # false is refused
    **dict.fromkeys(
        ("gpt_oss", "bamba", "mamba2", "qwen3_next", "qwen3_5", "granite_hybrid",
         "falcon_h1"),
        ACTIVATION,
    ),
}  # fmt: skip
# Where no layer differs from another.
UNIFORM = {"layer_types"}
LOOKED_AT = 12


class Asked(UserDict[str, object]):
    """A config.json that notes which keys a reader asks for by name, present or not."""

    def __init__(self, values: dict[str, object]) -> None:
        self.keys_asked: set[str] = set()
        super().__init__(values)

    def __getitem__(self, key: str) -> object:
        self.keys_asked.add(key)
        return self.data[key]

    def get(self, key: str, default: object = None) -> Any:
        self.keys_asked.add(key)
        return self.data.get(key, default)


@pytest.fixture(scope="module")
def theirs() -> Iterator[Transformers]:
    with Transformers() as process:
        yield process


def some_of(family: str) -> bool:
    """Whether the family is one of those that the quick tests take today."""
    today = datetime.now(UTC).toordinal()
    return list(FAMILIES).index(family) % 26 == today % 26


@pytest.mark.parametrize(
    "family",
    [pytest.param(one, marks=[pytest.mark.slow] * (not some_of(one))) for one in FAMILIES],
)
def test_every_key_that_is_read_varies(family: str) -> None:
    draws = [drawn(family, number) for number in range(LOOKED_AT)]
    written = config_class(family)(**draws[0]).to_dict()
    asked = Asked({**written, "architectures": [FAMILIES[family]]})
    model_config(asked)
    read = read_keys(asked.data, {*written, *asked.keys_asked, *varied_keys(family)})
    assert len(read) > 8
    values = {key: {json.dumps(one.get(key)) for one in draws} for key in read}
    still = {key for key in read if len(values[key]) == 1}
    assert still <= {*UNVARIED, *OWN_UNVARIED.get(family, ()), *UNIFORM}


def test_a_number_gives_one_draw() -> None:
    assert drawn("llama", 5) == drawn("llama", 5)
    assert drawn("llama", 5) != drawn("llama", 6)


@pytest.mark.parametrize("family", [one for one in FAMILIES if some_of(one)])
def test_draws_of_today_answer_as_transformers(family: str, theirs: Transformers) -> None:
    """Other families every day, and other draws; in CI the first, which is known to pass."""
    number = 0 if "CI" in os.environ else datetime.now(UTC).toordinal()
    row = Row(family, "cpu")
    one_draw(theirs, row, number)
    assert row.draws == 1 and not row.failed, row


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["cpu", "xla"])
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_answer_as_transformers(
    family: str, implementation: str, theirs: Transformers
) -> None:
    row = Row(family, implementation)
    for number in range(2):
        one_draw(theirs, row, number)
    assert row.draws and not row.failed and not row.refused, row


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation",
    ["triton", "bfloat16", "int8", "int4", "int8-cache", "adapter", "ngram", "suffix",
     "several-steps"],
)  # fmt: skip
@pytest.mark.parametrize("family", ["llama", "olmo2", "qwen3_moe"])
def test_other_implementations(family: str, implementation: str, theirs: Transformers) -> None:
    found = check(theirs, family, 1, IMPLEMENTATIONS[implementation])
    assert found.passed, found


def test_norms_over_all_heads_of_one_head_each(theirs: Transformers) -> None:
    """OLMo 2 with as many KV heads as query heads was wrong on the CPU's kernels."""
    number = next(number for number in range(30) if has_own_keys(drawn("olmo2", number)))
    found = check(theirs, "olmo2", number, IMPLEMENTATIONS["cpu"])
    assert found.passed, found


def has_own_keys(given: dict[str, Any]) -> bool:
    return given["num_attention_heads"] == given["num_key_value_heads"] > 1


def test_what_transformers_refuses_is_said(theirs: Transformers) -> None:
    with pytest.raises(Refused, match="hidden size"):
        theirs.config("LlamaForCausalLM", {"hidden_size": 33, "num_attention_heads": 2})
    assert theirs.config("LlamaForCausalLM", {"vocab_size": 91})["vocab_size"] == 91


def test_a_draw_that_is_off_is_told_in_a_line_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], theirs: Transformers
) -> None:
    found = {3: Found(1e-6, 1e-4), 4: Found(0.5, 1e-4), 5: Found(5e-4, 1e-3, "ill-conditioned")}
    monkeypatch.setattr(search, "check", lambda theirs, family, number, how: found[number])
    row = Row("olmo2", "cpu")
    for number in found:
        one_draw(theirs, row, number)
    said = capsys.readouterr().out
    command = "python -m jengine.bench.fidelity --family olmo2 --seed 4 --draws 1"
    assert said.count("\n") == 1 and f"{command} --implementation cpu" in said
    assert (row.draws, row.failed, row.worst, row.ill_conditioned) == (3, [4], 4, 1)


def test_a_draw_that_is_refused_is_counted_by_its_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], theirs: Transformers
) -> None:
    def refuse(*given: object) -> Found:
        raise CheckpointError("config.json: 'x': given 1, expected 2.")

    monkeypatch.setattr(search, "check", refuse)
    row = Row("olmo2", "cpu")
    one_draw(theirs, row, 7)
    assert row.draws == 0 and list(row.refused.values()) == [7]
    assert "--family olmo2 --seed 7 --draws 1 --implementation cpu" in capsys.readouterr().out


def test_a_shape_that_an_implementation_does_not_compute_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, theirs: Transformers
) -> None:
    def refuse(*given: object) -> Found:
        raise CheckpointError("layers.0.mlp.down: int4 stores pairs of inputs, and it has (31,).")

    monkeypatch.setattr(search, "check", refuse)
    rows = [Row("olmo2", how) for how in ("int4", "cpu")]
    for row in rows:
        one_draw(theirs, row, 7)
    assert [(row.impossible, len(row.refused)) for row in rows] == [(1, 0), (0, 1)]


def test_one_draw_of_each_family_comes_before_the_second_of_any() -> None:
    args = argparse.Namespace(seed=4, draws=2, implementation=["cpu"])
    rows = [[Row("a", "cpu")], [Row("b", "cpu")]]
    order = [(number, row.family) for number, row in search.turns(args, rows)]
    assert order == [(4, "a"), (4, "b"), (5, "a"), (5, "b")]


def test_implementations_take_turns_with_draws_of_their_own() -> None:
    args = argparse.Namespace(seed=4, draws=1, implementation=["x", "y"])
    rows = [[Row(family, how) for how in args.implementation] for family in "ab"]
    order = [(number, row.family, row.implementation) for number, row in search.turns(args, rows)]
    assert order == [(4, "a", "x"), (4, "b", "y"), (5, "a", "y"), (5, "b", "x")]


def test_implementations_of_one_process_share_a_build(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--implementation", "cpu", "cpu-basic"])
    assert "one command for each" in capsys.readouterr().err
    assert set(environment_of(["triton", "tp2"])) == {"TRITON_INTERPRET", "XLA_FLAGS"}


def test_every_family_that_writes_is_searched() -> None:
    writing = {name for name in ARCHITECTURES if name.endswith(("ForCausalLM", "LMHeadModel"))}
    assert writing - {"MPTForCausalLM"} == set(FAMILIES.values())  # another name of one of them


def test_a_family_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--family", "lama"])
    assert "invalid choice: 'lama'" in capsys.readouterr().err


def test_it_goes_on_in_the_environment_of_the_implementation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, given: begun.append((words, given)))
    main(["--implementation", "cpu-basic", "--draws", "3"])
    ((words, environment),) = begun
    assert words[-4:] == ["--implementation", "cpu-basic", "--draws", "3"]
    assert environment["CXX"] == IMPLEMENTATIONS["cpu-basic"].environment["CXX"]


def test_what_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jengine.bench.fidelity.__main__.NEEDED", ("no_such_library",))
    with pytest.raises(SystemExit):
        main([])
    assert "no_such_library cannot be imported: pip install 'jengine[test]'" in (
        capsys.readouterr().err
    )
