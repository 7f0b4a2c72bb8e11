"""Every engine argument of vLLM works, is accepted at its default, or is refused by name."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine.assembly.settings import vllm_tuning
from jengine.assembly.settings.args import RENAMED, EngineArgs
from jengine.assembly.settings.vllm_args import (
    FEATURES,
    INSTEAD,
    PARTS,
    VLLM_SETTINGS,
)
from jengine.assembly.settings.vllm_tuning import WITHOUT_EFFECT
from jengine.errors import ConfigError, UnsupportedFeature
from tests.assembly.vllm_arguments import VLLM_ARGUMENTS

FIELDS = {item.name for item in fields(EngineArgs)}
# Arguments of older releases, which many scripts still have.
OLDER = {
    "swap_space": 4, "max_seq_len_to_capture": 8192, "device": "auto",
    "guided_decoding_backend": "auto", "disable_log_requests": True, "use_v2_block_manager": True,
    "preemption_mode": "recompute", "rope_scaling": None, "rope_theta": None,
    "max_num_partial_prefills": 1, "max_long_partial_prefills": 1, "num_lookahead_slots": 0,
    "scheduler_delay_factor": 0.0, "disable_async_output_proc": False, "cuda_graph_sizes": None,
    "disable_mm_preprocessor_cache": False,
}  # fmt: skip


def test_every_name_of_vllm_is_known_once() -> None:
    assert len(VLLM_ARGUMENTS) > 240
    tables = [*FEATURES.values(), *INSTEAD.values(), *WITHOUT_EFFECT.values()]
    known = [*FIELDS, *RENAMED, *PARTS, *(name for names in tables for name in names)]
    assert set(VLLM_ARGUMENTS) <= set(known)
    assert len(known) == len(set(known))
    assert set(known) - FIELDS - set(VLLM_ARGUMENTS) == {*OLDER, "memory_utilization"}


@pytest.mark.parametrize(("name", "default"), [*VLLM_ARGUMENTS.items(), *OLDER.items()])
def test_vllms_defaults_ask_for_nothing(name: str, default: Any) -> None:
    args = EngineArgs("demo", **{name: default})
    if name in VLLM_SETTINGS:
        assert args == EngineArgs("demo")
    assert EngineArgs("demo", **{name: None}) == EngineArgs("demo")


@pytest.mark.parametrize("name", [n for n, one in sorted(VLLM_SETTINGS.items()) if not one.idle])
def test_other_values_are_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedFeature, match=rf"LLM\({name}='odd'\).*; leave {name} out\."):
        EngineArgs.checked("LLM", "demo", **{name: "odd"})
    with pytest.raises(UnsupportedFeature, match=rf"EngineArgs\({name}='odd'\)"):
        EngineArgs("demo", **{name: "odd"})


@pytest.mark.parametrize("name", [name for names in WITHOUT_EFFECT.values() for name in names])
def test_what_changes_no_answer_is_taken_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    vllm_tuning._note.cache_clear()
    for _ in range(2):
        assert EngineArgs.checked("LLM", "demo", **{name: "odd"}) == EngineArgs("demo")
    (line,) = caplog.messages
    assert f"LLM({name}='odd') has no effect: " in line


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"attention_backend": "FLASH_ATTN"}, {}),
        ({"dtype": "float"}, {"dtype": "float32"}),
        ({"kv_cache_dtype": "bfloat16"}, {}),
        ({"kv_cache_dtype": "fp8_e5m2"}, {"kv_cache_dtype": "fp8"}),
        ({"kv_cache_dtype": "fp8_ds_mla"}, {}),
        ({"load_format": "runai_streamer"}, {"load_format": "safetensors"}),
        ({"load_format": "mistral", "config_format": "mistral", "tokenizer_mode": "mistral"},
         {"load_format": "safetensors"}),
        ({"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
          "hf_overrides": {"head_dim": 8}},
         {"hf_overrides": {"head_dim": 8, "rope_theta": 1e6,
                           "rope_scaling": {"rope_type": "linear", "factor": 2.0}}}),
        ({"trust_remote_code": True, "tokenizer_mode": "slow", "device": "cuda"}, {}),
        ({"scheduler_cls": "vllm.v1.core.sched.async_scheduler.AsyncScheduler",
          "worker_cls": "vllm.v1.worker.gpu_worker.Worker", "disable_sliding_window": True}, {}),
        ({"media_io_kwargs": {"video": {"num_frames": 32}}}, {}),
        ({"model_loader_extra_config": {"enable_multithread_load": True, "num_threads": 8}},
         {"model_loader_extra_config": {}}),
        ({"speculative_config": {"model": "d", "num_speculative_tokens": 2,
                                 "draft_tensor_parallel_size": 1, "disable_by_batch_size": 4}},
         {"speculative_config": {"model": "d", "num_speculative_tokens": 2}}),
        ({"all2all_backend": "deepep_low_latency"}, {"all2all_backend": "all_to_all"}),
        ({"mamba_cache_mode": "all", "mamba_ssm_cache_dtype": "bfloat16"},
         {"mamba_ssm_cache_dtype": "float32"}),
        ({"compilation_config": 3}, {}),
        ({"compilation_config": {"level": 3, "cudagraph_mode": "NONE", "decode_rows": [4]}},
         {"compilation_config": {"decode_rows": [4]}}),
        ({"spec_method": "ngram", "spec_tokens": 3},
         {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
        ({"spec_tokens": 3, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
         {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}),
        ({"language_model_only": True}, {"limit_mm_per_prompt": {"image": 0, "video": 0}}),
        ({"language_model_only": False, "limit_mm_per_prompt": {"image": 1}},
         {"limit_mm_per_prompt": {"image": 1}}),
        ({"limit_mm_per_prompt": {"video": {"count": 1, "num_frames": 32}}},
         {"limit_mm_per_prompt": {"video": 1}}),
        ({"structured_outputs_config": {"backend": "xgrammar"}},
         {"structured_outputs_config": {"backend": "xgrammar"}}),
    ],
)  # fmt: skip
def test_values_of_vllm_have_the_nearest_meaning(
    given: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert EngineArgs("demo", **given) == EngineArgs("demo", **ours)


def test_defaults_that_many_scripts_write_down_are_accepted() -> None:
    args = EngineArgs(
        "demo", kv_cache_dtype="auto", swap_space=4, tokenizer_mode="auto", enable_lora=False,
        max_loras=1, enable_prefix_caching=None, attention_backend=None, block_size=None,
        tensor_parallel_size=1, disable_custom_all_reduce=True, hf_overrides={},
    )  # fmt: skip
    assert args == EngineArgs("demo", tensor_parallel_size=1)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"enable_tower_connector_lora": True}, "a setting of LoRA adapters that is not built"),
        ({"kv_cache_dtype_skip_layers": ["0"]}, "a setting of quantization that is not built"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": [0, 0, 0]}}}, "multimodal input"),
        ({"hf_config_path": "odd"}, "give the entries that differ as hf_overrides"),
        (
            {"distributed_executor_backend": "external_launcher"},
            "one process drives all its devices",
        ),
        ({"worker_cls": "odd"}, "executor='package.module:Class'"),
    ],
)
def test_refusals_say_what_to_do(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        EngineArgs("demo", **options)
    assert advice in str(caught.value)


def test_names_that_mean_the_same() -> None:
    assert EngineArgs("demo", memory_utilization=0.5).gpu_memory_utilization == 0.5
    assert EngineArgs("demo", async_scheduling=False).overlap is False
    assert EngineArgs("demo", use_tqdm_on_load=False).show_progress is False
    assert EngineArgs("demo", distributed_executor_backend="ray").executor == "ray"
    with pytest.raises(ConfigError, match=r"speculative_config\['method'\] is 'ngram'.*'suffix'"):
        EngineArgs("demo", speculative_config={"method": "ngram"}, spec_method="suffix")
    with pytest.raises(ConfigError, match="async_scheduling and overlap mean the same"):
        EngineArgs("demo", async_scheduling=False, overlap=True)
    with pytest.raises(ConfigError, match="mean the same; give one"):
        EngineArgs("demo", overlap=True, async_scheduling=False)


def test_engine_args_are_checked_as_an_engine_does() -> None:
    with pytest.raises(TypeError, match=r"EngineArgs .*'max_num_seq'.*Did you mean 'max_num_seqs'"):
        EngineArgs("demo", max_num_seq=4)
    with pytest.raises(ConfigError, match="positive integer"):
        EngineArgs("demo", max_num_seqs="many")
    assert EngineArgs(model="demo", max_model_len="1K").max_model_len == 1024


@pytest.mark.parametrize("owner", [EngineArgs, jengine.LLM])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"compilation_config": "3"}, "compilation_config='3': expected a dict .*cache_dir"),
        ({"compilation_config": [1]}, r"compilation_config=\[1\]: expected a dict"),
        ({"compilation_config": {"zzz": 1}}, "no key 'zzz'. Known: cache_dir"),
        ({"compilation_config": {"variant": 1}}, "Did you mean 'variants'"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching='yes': expected True or False"),
        ({"enforce_eager": 1}, "enforce_eager=1: expected True or False"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override=0: expected a positive"),
        ({"chat_template": "no/such/file.jinja"}, "chat_template='no/such/file.jinja' cannot"),
        ({"profiler_config": "torch"}, "profiler_config='torch': expected a dict"),
        ({"profiler_config": {"folder": "x"}}, "profiler_config has no key 'folder'"),
        ({"profiler_config": {"profiler": "cuda"}}, "expected one of 'jax', 'torch'"),
    ],
)
def test_wrong_values(owner: Any, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        owner("demo", **options)


def test_a_chat_template_may_be_a_file_or_text(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert EngineArgs("demo", chat_template=file).chat_template == "{{ messages }}"
    assert EngineArgs("demo", chat_template=str(file)).chat_template == "{{ messages }}"
    assert EngineArgs("demo", chat_template="{{ x }}").chat_template == "{{ x }}"


def test_flags_on_a_parser_of_the_programs_own() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-tokens", type=int)
    assert EngineArgs.add_cli_args(parser) is parser
    parser.set_defaults(model="demo")
    words = "--max-tokens 5 --max-model-len 1k --no-overlap --dtype float32 --max-num-seqs 3"
    given = parser.parse_args(words.split())
    expected = {"max_model_len": 1000, "overlap": False, "dtype": "float32", "max_num_seqs": 3}
    assert vars(given) == {"model": "demo", "max_tokens": 5, **expected}
    assert EngineArgs.from_cli_args(given) == EngineArgs("demo", **expected)


def test_flags_without_a_model_or_with_a_feature_that_is_not_built() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    with pytest.raises(ConfigError, match="--model is missing"):
        EngineArgs.from_cli_args(parser.parse_args([]))
    parser.set_defaults(enable_tower_connector_lora=True)
    with pytest.raises(UnsupportedFeature, match=r"\(enable_tower_connector_lora=True\): .* LoRA"):
        EngineArgs.from_cli_args(parser.parse_args(["--model", "demo"]))


def test_a_worker_class_is_the_class_of_an_executor() -> None:
    dotted = EngineArgs("demo", worker_cls="tests.server.scripted.Executor")
    assert dotted.executor == "tests.server.scripted:Executor"
    assert EngineArgs("demo", worker_cls=dotted.executor) == dotted
    with pytest.raises(ConfigError, match="worker_cls and executor mean the same"):
        EngineArgs("demo", worker_cls="a.B", executor="ray")


def test_ranks_on_several_hosts() -> None:
    here = {"data_parallel_address": "127.0.0.1"}
    args = EngineArgs("demo", data_parallel_size=4, data_parallel_size_local=1, **here)
    assert (args.ranks.local, args.ranks.elsewhere) == (range(1), 3)
    assert args.replicas_in_processes, "only core processes can be on several hosts"
    last = EngineArgs("demo", data_parallel_size=4, data_parallel_start_rank=2, **here)
    assert last.ranks.local == range(2, 4)
    assert not EngineArgs("demo", data_parallel_size=4).ranks.elsewhere
    with pytest.raises(ConfigError, match="data_parallel_address is missing"):
        EngineArgs("demo", data_parallel_size=2, data_parallel_size_local=0)
    with pytest.raises(ConfigError, match="ranks up to 2, but data_parallel_size=2"):
        EngineArgs("demo", data_parallel_size=2, data_parallel_start_rank=1,
                   data_parallel_size_local=2)  # fmt: skip
    for name in ("data_parallel_size_local", "data_parallel_start_rank"):
        with pytest.raises(ConfigError, match=f"{name}=3: expected a number from 0"):
            EngineArgs("demo", data_parallel_size=2, **{name: 3}, **here)
    assert "secret" not in repr(EngineArgs("demo", data_parallel_secret="of nobody")).replace(
        "data_parallel_secret", ""
    )
