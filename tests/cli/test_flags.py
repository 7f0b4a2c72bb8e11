"""Flags are made from the fields of EngineArgs and SamplingParams, in every spelling."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jengine.assembly.settings.args import ENGINE_HELP, SETTINGS, EngineArgs
from jengine.cli.few_requests import few_requests, models_sampling, variant
from jengine.cli.flags import (
    SAMPLING_HELP,
    add_engine_flags,
    add_sampling_flags,
    engine_arguments,
    flag_words,
    sampling_arguments,
)
from jengine.cli.parser import Parser, plain_words
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.sampling_params import SamplingParams
from tests.cli.fake_llm import FakeLLM, run


def parse(*words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    parser = Parser(prog="test", stderr=sys.stderr)
    parser.add_argument("model")
    parser.add_argument("prompts", nargs="*")
    add_sampling_flags(parser)
    add_engine_flags(parser, short=True)
    arguments = parser.parse(["demo", *words])
    return engine_arguments(arguments), sampling_arguments(arguments)


def test_every_engine_setting_has_a_flag_or_is_left_out_on_purpose() -> None:
    assert list(SETTINGS) == [field.name for field in fields(EngineArgs)]
    assert set(SETTINGS) - set(ENGINE_HELP) == {
        "model", "params", "mesh", "mesh_axes", "multiprocess", "skip_tokenizer_init",
        "enable_prompt_embeds", "profiler_config", "reasoning_parser", "data_parallel_secret",
    }  # fmt: skip
    assert {field.name for field in fields(SamplingParams)} >= set(SAMPLING_HELP)


def test_what_is_not_given_is_left_to_the_api() -> None:
    assert parse("hello") == ({}, {})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max-model-len", "1k"], {"max_model_len": 1000}),
        (["--max_model_len=1K"], {"max_model_len": 1024}),
        (["--max-model-len", "25.6k"], {"max_model_len": 25600}),
        (["--max-logprobs", "-1"], {"max_logprobs": -1}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["--enable_prefix_caching"], {"enable_prefix_caching": True}),
        (["--enforce-eager"], {"enforce_eager": True}),
        (["--strict"], {"strict": True}),
        (
            ["--compilation-config.wait-for", "all"],
            {"compilation_config": {"wait_for": "all"}},
        ),
        (
            [
                "--executor",
                "ray",
                "--executor-options.num_cpus",
                "2",
                "--executor-options",
                '{"address": "auto"}',
            ],
            {"executor": "ray", "executor_options": {"num_cpus": 2, "address": "auto"}},
        ),
        (
            [
                "--structured-outputs-config.disable-any-whitespace",
                "true",
                "--structured-outputs-config",
                '{"backend": "guidance"}',
            ],
            {"structured_outputs_config": {"disable_any_whitespace": True, "backend": "guidance"}},
        ),
        (["--no_show_progress"], {"show_progress": False}),
        (["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
        (["--scheduling-policy", "priority"], {"scheduling_policy": "priority"}),
        (["--gpu-memory-utilization", "0.5"], {"gpu_memory_utilization": 0.5}),
        (["--chat-template", "{{ messages }}"], {"chat_template": "{{ messages }}"}),
    ],
)
def test_engine_flags(words: list[str], expected: dict[str, Any]) -> None:
    assert parse(*words)[0] == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--compilation-config", '{"variants": ["greedy"]}'], {"variants": ["greedy"]}),
        (["--compilation-config.variants", "greedy"], {"variants": ["greedy"]}),
        (["--compilation_config.variants=greedy,full"], {"variants": ["greedy", "full"]}),
        (["--compilation-config.decode-rows", "4"], {"decode_rows": [4]}),
        (["--compilation-config.decode_rows", "2, 8"], {"decode_rows": [2, 8]}),
        (["--compilation-config.decode_rows", "[2, 8]"], {"decode_rows": [2, 8]}),
        (["--compilation-config.cache_dir", "/tmp/x,y"], {"cache_dir": "/tmp/x,y"}),
        (["--compilation-config.cache-dir", "false"], {"cache_dir": False}),
    ],
)
def test_compilation_config(words: list[str], expected: dict[str, Any]) -> None:
    assert parse(*words)[0] == {"compilation_config": expected}


def test_vllms_short_flags() -> None:
    words = ["-tp", "2", "-pp", "2", "-n", "2", "-r", "1", "-ep", "-cc", '{"wait_for": "all"}']
    assert parse(*words, "--distributed-executor-backend", "mp")[0] == {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "nnodes": 2, "node_rank": 1,
        "enable_expert_parallel": True, "compilation_config": {"wait_for": "all"},
        "distributed_executor_backend": "mp",
    }  # fmt: skip
    assert parse("-q", "int8", "-dp", "2", "-dpb", "mp")[0]["data_parallel_backend"] == "mp"
    with pytest.raises(UnsupportedFeature, match="executor says who runs the steps"):
        parse("--distributed-executor-backend", "external_launcher")


def test_compilation_config_in_parts_is_merged() -> None:
    words = ["--compilation-config", '{"pages": [4]}', "--compilation-config.variants", "full"]
    assert parse(*words)[0] == {"compilation_config": {"pages": [4], "variants": ["full"]}}


def test_sampling_flags() -> None:
    words = ["--max-tokens", "1k", "--temperature", "0.5", "--top_k", "-1", "--stop", "a"]
    _, given = parse(*words, "--stop", "b", "--n", "2", "--logprobs", "0", "--ignore-eos")
    assert given == {
        "max_tokens": 1000, "temperature": 0.5, "top_k": -1, "stop": ["a", "b"], "n": 2,
        "logprobs": 0, "ignore_eos": True,
    }  # fmt: skip
    SamplingParams(**given)


def test_the_seed_is_the_engines_and_the_requests() -> None:
    assert parse("--seed", "7") == ({"seed": 7}, {"seed": 7})


def test_engine_settings_are_checked_before_the_engine_starts(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'variants'"):
        parse("--compilation-config.variant", "greedy")
    assert parse("--trust-remote-code") == ({"trust_remote_code": True}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        parse("--chat-template", str(tmp_path / "missing.jinja"))


def test_a_chat_template_may_be_a_file(tmp_path: Any) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0] }}")
    assert parse("--chat-template", str(file))[0] == {"chat_template": "{{ messages[0] }}"}


def test_words_after_two_dashes_stay_as_they_are() -> None:
    assert plain_words(["--a_b", "c_d", "--", "--e_f"]) == ["--a-b", "c_d", "--", "--e_f"]


def test_few_requests_start_small_unless_the_user_says_otherwise() -> None:
    assert few_requests({}, {"temperature": 0}, 1) == {
        "max_num_seqs": 1,
        "compilation_config": {"variants": ["greedy"]},
    }
    complete = {"variants": ["full"], "pages": [4], "wait_for": "all"}
    own = {"max_num_seqs": 9, "compilation_config": complete}
    assert few_requests(own, {}, 1) == own
    for whole in ({"strict": True}, {"deterministic": True}):
        assert few_requests(whole, {}, None) == whole
    for elsewhere in ({"executor": "ray"}, {"enforce_eager": True}, {"seed": 3}):
        wanted = few_requests(elsewhere, {}, 1)
        EngineArgs.checked("LLM", model="demo", **wanted)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, "sampled"),
        ({"temperature": 0}, "greedy"),
        ({"temperature": 0, "presence_penalty": 1.0}, "adjusted"),
        ({"repetition_penalty": 1.0}, "sampled"),
        ({"logprobs": 0}, "full"),
        ({"logprobs": 0, "presence_penalty": 1.0}, "full"),
    ],
)
def test_the_cheapest_variant_is_compiled(sampling: dict[str, Any], expected: str) -> None:
    assert variant(sampling) == expected


def test_the_models_own_penalty_counts_as_given(tmp_path: Path) -> None:
    own = {"repetition_penalty": 1.1, "temperature": 0.6}
    (tmp_path / "generation_config.json").write_text(json.dumps(own))
    assert models_sampling(str(tmp_path), {}) == own
    assert models_sampling(str(tmp_path), {"generation_config": "vllm"}) == {}
    for command in (["chat", str(tmp_path), "-q"], ["generate", str(tmp_path)]):
        llm = FakeLLM()
        run(llm, *command, "hello")
        run(llm, *command, "hello", "--repetition-penalty", "1")
        variants = [settings["compilation_config"]["variants"] for _, settings in llm.opened]
        assert variants == [["adjusted"], ["sampled"]]


def test_settings_are_typed_as_they_are_read() -> None:
    settings = {"strict": True, "compilation_config": {"wait_for": "all", "decode_rows": [2, 8]}}
    words = flag_words(settings)
    assert words == [
        "--strict", "--compilation-config.wait_for", "all",
        "--compilation-config.decode_rows", "[2, 8]",
    ]  # fmt: skip
    assert parse(*words)[0] == settings
