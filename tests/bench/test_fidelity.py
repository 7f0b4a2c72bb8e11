"""Random configs of every family: all that is read varies, and transformers answers the same."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import LLM
from jengine.bench.fidelity.__main__ import main
from jengine.bench.fidelity.answers import GreedyAnswer, compared_routed, greedy
from jengine.bench.fidelity.check import check, drawn_of
from jengine.bench.fidelity.child_process import ChildProcess
from jengine.bench.fidelity.conditional import CONDITIONAL, drawn_conditional
from jengine.bench.fidelity.draws import drawn, varied_keys
from jengine.bench.fidelity.encoders import ENCODERS, drawn_encoder
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.flags import SEARCHED
from jengine.bench.fidelity.found import beside_float64
from jengine.bench.fidelity.generic import GENERIC, drawn_generic
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.bench.fidelity.kept import FamilyRow, FamilyTable, stretches
from jengine.bench.fidelity.search import due
from jengine.bench.fidelity.transformers_process import ConfigRefused, Routed, Transformers
from jengine.bench.fidelity.worker import answer
from jengine.bench.fidelity.workers import Workers
from jengine.errors import CheckpointError, ConfigError
from jengine.models.architectures import FAMILIES as ARCHITECTURES
from jengine.models.registry import model_config
from jengine.models.unread import read_keys
from tests.api.engines import SMALL_DEMO
from tests.marks import slow
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
    "cohere2": {"use_qk_norm"},
    "mpt": {"logit_scale"},
    "minicpm3": {"mlp_bias"},
    "minimax_m2": {"shared_intermediate_size"},
    "nemotron_h": {"rope_parameters", "tie_word_embeddings"},  # no rotation, and no tied head
    "olmoe": {"head_dim"},
    "bitnet": {"head_dim"},
    "zamba2": {"tie_word_embeddings", "use_conv_bias", "use_long_context"},  # others are refused
    # The width follows from others where config.json has none.
    "mamba": {"intermediate_size", *ACTIVATION}, "falcon_mamba": {"intermediate_size", *ACTIVATION},
    "jamba": {"head_dim", "rope_parameters", *ACTIVATION},  # no rotation
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
    """Whether the family is the one that the quick tests take today."""
    today = datetime.now(UTC).toordinal()
    return list(FAMILIES).index(family) == today % len(FAMILIES)


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


def found_in(theirs: Transformers, family: str, implementation: str, *numbers: int) -> FamilyRow:
    row = FamilyRow(family, implementation)
    for number in numbers:
        job = {"family": family, "number": number, "implementation": implementation}
        row.add(number, answer(theirs, job))
    return row


@pytest.mark.parametrize("family", [one for one in FAMILIES if some_of(one)])
def test_draws_of_today_answer_as_transformers(family: str, theirs: Transformers) -> None:
    """Another family every day, and another draw; in CI the first, which is known to pass."""
    number = 0 if "CI" in os.environ else datetime.now(UTC).toordinal()
    row = found_in(theirs, family, "cpu", number)
    assert row.draws == 1 and not row.failed, row


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["cpu", "xla"])
@pytest.mark.parametrize("family", FAMILIES)
def test_draws_answer_as_transformers(
    family: str, implementation: str, theirs: Transformers
) -> None:
    row = found_in(theirs, family, implementation, 0, 1)
    assert row.draws and not row.failed, row


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


@pytest.mark.parametrize(
    ("number", "implementation"), [(5, "bfloat16"), *slow((1, "bfloat16"), (1, "int8-cache"))]
)
def test_rounding_may_choose_between_experts_of_equal_scores(
    number: int, implementation: str, theirs: Transformers
) -> None:
    """One expert of one token is another one in draw 5, which is 9 times torch's error."""
    found = check(theirs, "glm4_moe", number, IMPLEMENTATIONS[implementation])
    assert found.passed and found.error > 0, found


@pytest.mark.parametrize("replaced", [8, 9])
def test_a_router_that_chooses_others_more_often_than_rounding_does_is_wrong(
    replaced: int,
) -> None:
    rows, experts = np.zeros((1, 47, 3)), np.zeros((1, 2, 47, 1), np.uint8)
    passes = iter([Routed(rows, experts, count) for count in (0, replaced, 0)])
    ours = GreedyAnswer([1] * 8, rows[0], experts[0].swapaxes(0, 1))
    found = compared_routed(
        lambda **given: next(passes), [ours], [0, 1], IMPLEMENTATIONS["bfloat16"]
    )
    assert found is not None and found.passed == (replaced == 8)


@pytest.mark.slow
def test_layers_that_read_others_kv_need_no_inputs_of_their_own(theirs: Transformers) -> None:
    settings = drawn("gemma4", 2)
    assert settings["num_kv_shared_layers"] and not settings["hidden_size_per_layer_input"]
    found = check(theirs, "gemma4", 2, IMPLEMENTATIONS["cpu"])
    assert found.passed, found


def test_whisper_reads_no_scale_of_embeddings(theirs: Transformers) -> None:
    """Though its config has the key."""
    assert drawn_of(theirs, "WhisperForCausalLM", 2)["scale_embedding"]
    assert check(theirs, "WhisperForCausalLM", 2, IMPLEMENTATIONS["cpu"]).passed


@pytest.mark.parametrize(
    ("architecture", "key"),
    [("PhimoeForCausalLM", "num_experts_per_tok"), ("AriaTextForCausalLM", "hidden_act")],
)
def test_keys_whose_value_the_class_ignores_are_refused(
    architecture: str, key: str, theirs: Transformers
) -> None:
    """PhiMoE's mixer chooses two experts, and Aria's experts take SiLU, whatever they say."""
    with pytest.raises(CheckpointError, match=key):
        check(theirs, architecture, 5, IMPLEMENTATIONS["cpu"])


@pytest.mark.slow
def test_codes_that_int4_finds_again(theirs: Transformers) -> None:
    found = check(theirs, "llama", 0, IMPLEMENTATIONS["int4"])
    assert found.passed, found


@pytest.mark.slow
def test_norms_over_all_heads_of_one_head_each(theirs: Transformers) -> None:
    """OLMo 2 with as many KV heads as query heads was wrong on the CPU's kernels."""
    number = next(number for number in range(30) if has_own_keys(drawn("olmo2", number)))
    found = check(theirs, "olmo2", number, IMPLEMENTATIONS["cpu"])
    assert found.passed, found


@pytest.mark.parametrize(
    ("ours", "torch", "limit"),
    [(4e-4, 9e-4, 1e-3), (3e-4, 2e-4, 1e-3), (4e-4, 1e-4, 1e-4)],
)
def test_ill_conditioned_draws_are_measured_from_float64(
    ours: float, torch: float, limit: float
) -> None:
    """Torch may be further from float64 than ours; no answer may be much further than torch."""
    exact, noise = np.ones((10, 4)), np.random.default_rng(0).uniform(-1, 1, (2, 10, 4))
    found = beside_float64([exact + ours * noise[0]], [exact + torch * noise[1]], [exact])
    assert found.limit == limit and found.passed == (limit == 1e-3)
    assert (found.error <= ours) == found.passed


def has_own_keys(given: dict[str, Any]) -> bool:
    return given["num_attention_heads"] == given["num_key_value_heads"] > 1


def test_the_second_prompt_is_read_from_the_prefix_cache() -> None:
    """It was computed anew: parameters kept what scores of a prompt had decided."""
    begin = [5 + n % 50 for n in range(32)]
    with LLM("demo", **{**SMALL_DEMO, "max_logprobs": -1}) as llm:
        greedy(llm, [[*begin, 7], [*begin, 8, 9], [*begin, 4]])
        # The second alone: scores of the others' prompts pass the cache by.
        assert llm.engine.client.state().counts.prefix_hits == len(begin)


def test_what_transformers_refuses_is_said(theirs: Transformers) -> None:
    with pytest.raises(ConfigRefused, match="hidden size"):
        theirs.config("LlamaForCausalLM", {"hidden_size": 33, "num_attention_heads": 2})
    assert theirs.config("LlamaForCausalLM", {"vocab_size": 91})["vocab_size"] == 91


PASSED = {"error": 1e-6, "limit": 1e-4, "note": "", "seconds": 1.5, "instructions": "AVX2"}
OFF = {**PASSED, "error": 0.5}


def test_a_draw_that_is_off_is_told_in_a_line_that_repeats_it() -> None:
    row = FamilyRow("olmo2", "cpu")
    ill = {**PASSED, "error": 5e-4, "limit": 1e-3, "note": "ill-conditioned"}
    assert row.add(3, PASSED) == "" and row.add(5, ill) == ""
    said = row.add(4, OFF)
    command = "python -m jengine.bench.fidelity --family olmo2 --seed 4 --draws 1"
    assert said == f"off by 5.0e-01: {command} --implementation cpu"
    assert (row.draws, row.failed, row.worst) == (3, {4: said}, 5)
    assert row.notes == ["5: 5.0e-04, ill-conditioned"] and row.ill_conditioned == 1


def test_a_draw_that_breaks_the_engine_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, theirs: Transformers
) -> None:
    def broken(*given: object) -> None:
        raise IndexError("no layer 3")

    monkeypatch.setattr("jengine.bench.fidelity.worker.check", broken)
    row = found_in(theirs, "olmo2", "cpu", 7)
    assert row.draws == 1 and row.failed[7].startswith("IndexError: no layer 3: python -m ")


def test_a_shape_that_an_implementation_does_not_compute_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, theirs: Transformers
) -> None:
    def refuse(*given: object) -> None:
        raise CheckpointError("layers.0.mlp.down: int4 stores pairs of inputs, and it has (31,).")

    monkeypatch.setattr("jengine.bench.fidelity.worker.check", refuse)
    rows = [found_in(theirs, "olmo2", how, 7) for how in ("int4", "cpu")]
    assert [(row.impossible, row.draws, len(row.failed)) for row in rows] == [(1, 0, 0), (0, 1, 1)]
    assert rows[1].failed[7].startswith("refused, layers.0.mlp.down: int4 stores pairs")


RUN = {"command": "c", "commit": "abc", "versions": {}, "hardware": {"processor": "P"}}


def test_a_later_run_goes_on_where_one_was_interrupted(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    first = FamilyTable(file, RUN)
    for number, found in enumerate([PASSED, OFF, PASSED]):
        first.add(first.row("llama", "cpu"), number, found, 1.0)
    # Whatever ends the process here, all draws are in the file.
    later = FamilyTable(file, {**RUN, "commit": "def"})
    row = later.row("llama", "cpu")
    assert row == first.row("llama", "cpu") and row.seconds == 4.5
    assert [number for _, number in due([row], range(5))] == [1, 3, 4]
    later.add(row, 1, PASSED, 2.0)
    kept = json.loads(file.read_text())
    assert (row.draws, row.failed, kept["draws"], kept["failed"]) == (3, {}, 3, 0)
    runs = [(run["commit"], run["draws"], run["seconds"]) for run in kept["runs"]]
    assert runs == [("abc", 3, 1.0), ("def", 1, 2.0)]


def test_draws_of_another_processor_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    table = FamilyTable(file, RUN)
    table.add(table.row("llama", "cpu"), 0, PASSED, 1.0)
    with pytest.raises(ConfigError, match=r"was found on P, and this is Q.*another file"):
        FamilyTable(file, {**RUN, "hardware": {"processor": "Q"}})


def test_numbers_are_kept_as_stretches() -> None:
    assert stretches({7, 1, 0, 2, 9, 8}) == [[0, 2], [7, 9]]


# Never answers a draw with an odd number, ends at number 4, and answers others.
WORKER = """
import json, os, sys, time
for line in sys.stdin:
    number = json.loads(line).get("number", 0)
    if number == 4:
        os._exit(3)
    if number % 2:
        time.sleep(10000)
    print(json.dumps({"pid": os.getpid()}), flush=True)
"""


def test_a_draw_that_hangs_is_ended_and_the_search_goes_on() -> None:
    with Workers(limit_s=600, program=[sys.executable, "-c", WORKER]) as workers:
        first, second = (workers.check("llama", number, "cpu") for number in (0, 2))
        assert first == second  # one process
        workers.limit_s = 0.01
        assert workers.check("llama", 1, "cpu") == {"broke": "no answer in 0.01 s"}
        workers.limit_s = 600
        third = workers.check("llama", 6, "cpu")
        assert third != first and workers.check("llama", 8, "cpu") == third
        assert "has ended (status 3)" in workers.check("llama", 4, "cpu")["broke"]
        assert workers.check("llama", 0, "cpu") != third
        assert workers.check("llama", 2, "triton") != workers.check("llama", 2, "cpu")


def test_an_interrupted_question_leaves_no_timer_behind() -> None:
    with pytest.raises(TypeError), ChildProcess([sys.executable, "-c", WORKER]) as child:
        child.ask({"number": object()})  # raises while the time runs
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert all(one.finished.is_set() for one in timers)


def test_one_draw_of_each_family_comes_before_the_second_of_any() -> None:
    """Within a round, those that run in one process follow each other."""
    rows = [FamilyRow(family, how) for family in "ab" for how in ("cpu", "cpu-basic", "xla")]
    order = [(number, row.family, row.implementation) for row, number in due(rows, range(4, 6))]
    one = [(family, how) for how in ("cpu", "cpu-basic", "xla") for family in "ab"]
    assert order == [(number, *row) for number in (4, 5) for row in one]


# Architectures that no draw has, and why.
UNSEARCHED = {
    "MPTForCausalLM": "another name of MptForCausalLM",
    "Apertus1p5TextForCausalLM": "the same class as ApertusForCausalLM",
    "Gemma4UnifiedForCausalLM": "Gemma 4's reader, without inputs of each layer",
    "HF_ColBERT": "transformers has no such class",
    **dict.fromkeys(
        ("BertForMaskedLM", "RobertaForMaskedLM", "XLMRobertaForMaskedLM", "ModernBertForMaskedLM"),
        "the same body, whose head is not used",
    ),
}  # fmt: skip


def test_a_class_of_the_generic_reader_is_drawn_by_the_usual_names() -> None:
    """Its own names are given back, and no key that the class does not have."""
    defaults = {
        "n_embd": 64, "n_layer": 2, "n_head": 4, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "vocab_size": 97, "tie_word_embeddings": False,
    }  # fmt: skip
    draws = [drawn_generic("GPTJForCausalLM", defaults, number) for number in range(LOOKED_AT)]
    assert draws[5] == drawn_generic("GPTJForCausalLM", defaults, 5)
    for key, value in defaults.items():
        assert len({one.get(key, value) for one in draws}) > 1, key
        assert all(one.keys() <= defaults.keys() for one in draws)
    assert set(GENERIC) <= set(SEARCHED)


def test_a_refusal_of_the_generic_reader_is_no_failure() -> None:
    row = FamilyRow("GPTJForCausalLM", "cpu")
    assert not row.add(0, {"refused": "config.json: 'rotary': ..."}) and row.impossible == 1
    assert row.add(1, {"error": 1.0, "limit": 1e-4, "note": ""}) and row.failed


def test_every_architecture_is_searched_or_says_why_not() -> None:
    drawn_classes = {one for encoder in ENCODERS.values() for one in encoder.architectures}
    drawn_classes |= {one.architecture for one in CONDITIONAL.values()}
    searched = {*FAMILIES.values(), *drawn_classes}
    assert searched | UNSEARCHED.keys() == set(ARCHITECTURES)
    assert not searched & UNSEARCHED.keys()


@pytest.mark.parametrize("family", ["bert", *slow("roberta", "xlm_roberta", "nomic_bert",
                                                  "modernbert")])  # fmt: skip
def test_encoders_answer_as_transformers(family: str, theirs: Transformers) -> None:
    row = found_in(theirs, family, "cpu", 0)
    assert row.draws == 1 and not row.failed, row


@pytest.mark.parametrize(
    "family", ["whisper", *slow(*[one for one in CONDITIONAL if one != "whisper"])]
)
def test_models_of_more_than_a_prompt_answer_as_transformers(
    family: str, theirs: Transformers
) -> None:
    """Whisper's convolutions took the activation that blocks have, where transformers has gelu."""
    assert drawn_conditional("whisper", 0)["activation_function"] == "relu"
    row = found_in(theirs, family, "cpu", 0)
    assert row.draws == 1 and not row.failed, row


OTHER_ENCODERS = {
    "is_decoder", "position_embedding_type", "attention_bias", "mlp_bias", "norm_bias",
    # Of Nomic, whose files may have other names for what varies: tests/api/test_encoders.py.
    "activation_function", "hidden_act", "mlp_fc1_bias", "mlp_fc2_bias", "num_experts",
    "parallel_block", "prenorm", "qkv_proj_bias", "rotary_emb_fraction", "rotary_emb_interleaved",
    "rotary_emb_scale_base", "rotary_scaling_factor", "use_rms_norm", "pad_token_id",
    # Of ModernBERT, which says in two ways which layers are alike, and how they rotate.
    "layer_types", "global_rope_theta", "local_rope_theta", "bos_token_id", "cls_token_id",
    "eos_token_id", "sep_token_id",
}  # fmt: skip


@pytest.mark.parametrize("family", ENCODERS)
def test_every_key_that_an_encoder_reads_varies(family: str) -> None:
    draws = [drawn_encoder(family, number) for number in range(60)]
    asked = Asked({**draws[0][1], "architectures": [draws[0][0]]})
    model_config(asked)
    values = {key: {str(one.get(key)) for _, one in draws} for key in asked.keys_asked}
    fixed = {key for key in values if len(values[key]) == 1}
    assert fixed <= {*UNVARIED, *OTHER_ENCODERS}


# What is refused otherwise, or is not there to be drawn.
OTHER_CONDITIONAL = {
    "max_source_positions", "scale_decoder_outputs", "normalize_before", "add_final_layer_norm",
    "static_position_embeddings", "bos_token_id", "pad_token_id", "eos_token_id",
}  # fmt: skip
OF_FAMILY = {
    "bart": {"tie_word_embeddings"}, "mt5": {"tie_word_embeddings"},  # one value is supported
    "whisper": {"scale_embedding"},
    "llava": {"vision_feature_select_strategy", "image_token_index"},
    "gemma3_vision": {
        "image_token_index", "boi_token_index", "eoi_token_index", "tie_word_embeddings",
    },
    "gemma4_vision": {
        "image_token_id", "video_token_id", "audio_token_id", "boi_token_id", "eoi_token_id",
        "tie_word_embeddings",
    },
    "internvl": {
        "vision_feature_layer", "vision_feature_select_strategy", "downsample_ratio",
        "image_token_id",
    },
    **{
        family: {
            "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"
        }
        for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
    },
}  # fmt: skip


@pytest.mark.parametrize("family", CONDITIONAL)
def test_every_key_that_models_of_more_than_a_prompt_read_varies(family: str) -> None:
    draws = [drawn_conditional(family, number) for number in range(60)]
    asked = Asked({**draws[0], "architectures": [CONDITIONAL[family].architecture]})
    model_config(asked)
    values = {key: {str(one.get(key)) for one in draws} for key in asked.keys_asked}
    fixed = {key for key in values if len(values[key]) == 1}
    assert fixed <= {*UNVARIED, *OTHER_CONDITIONAL, *OF_FAMILY.get(family, ())}


def test_a_family_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--family", "lama"])
    assert "invalid choice: 'lama'" in capsys.readouterr().err


def test_what_cannot_be_imported_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jengine.bench.fidelity.__main__.NEEDED", ("no_such_library",))
    with pytest.raises(SystemExit):
        main([])
    assert "no_such_library cannot be imported: pip install 'jengine[test]'" in (
        capsys.readouterr().err
    )
