"""vLLM's import paths, classes and methods: each works under its name or says what to do."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine import LLM, AsyncLLM, EngineArgs
from jengine.cli.parser import FlexibleArgumentParser
from jengine.errors import UnsupportedFeature
from jengine.vllm_names import (
    NAMES_IN_ROOMS,
    PATHS,
    UNBUILT_METHODS,
    UNBUILT_NAMES,
    UNBUILT_PATHS,
    home_of,
)
from jengine.vllm_scripts import KVEventsConfig

ROOT = Path(__file__).parent.parent
# The public names of vllm 0.33, of its LLM and of its AsyncLLM.
TOP = """LLM ModelRegistry PromptType TextPrompt TokensPrompt SamplingParams RequestOutput
CompletionOutput PoolingOutput PoolingRequestOutput EmbeddingOutput EmbeddingRequestOutput
ClassificationOutput ClassificationRequestOutput ScoringOutput ScoringRequestOutput LLMEngine
EngineArgs AsyncLLMEngine AsyncEngineArgs initialize_ray_cluster PoolingParams __version__"""
OF_LLM = """apply_model beam_search chat classify collective_rpc embed encode enqueue enqueue_chat
finish_weight_update from_engine_args generate get_default_sampling_params get_metrics
get_tokenizer get_weight_version get_world_size init_weight_transfer_engine
release_kv_cache_memory reset_mm_cache reset_prefix_cache score shutdown_weight_transfer_engine
sleep start_draft_weight_update start_profile start_weight_update stop_profile
supported_tasks update_weight_version update_weights wait_for_completion wake_up llm_engine
model_config"""
OF_ASYNC = """abort add_lora add_request check_admission check_health checkpoint_prepare
checkpoint_restore collective_rpc compute_weight_checksums dead_error do_log_stats encode errored
finish_weight_update from_engine_args generate get_kv_event_sources get_num_queued_tokens
get_num_unfinished_requests get_status get_supported_tasks get_tokenizer get_weight_version
handle_fault init_weight_transfer_engine is_paused is_running is_sleeping is_stopped
is_tracing_enabled list_loras pause_generation pin_lora release_kv_cache_memory remove_lora
reset_encoder_cache reset_mm_cache resume_generation scale_elastic_ep shutdown
should_keep_api_server_alive sleep start_weight_update tokenizer update_weights
wait_for_requests_to_drain wake_up"""


@pytest.mark.parametrize("name", TOP.split())
def test_every_public_name_of_vllm_is_there_or_explained(name: str) -> None:
    try:
        assert getattr(jengine, name) is not None
    except UnsupportedFeature as error:
        assert str(error).startswith(f"jengine.{name}: ")


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("jengine.sampling_params", ["SamplingParams", "RequestOutputKind"]),
        ("jengine.outputs", ["RequestOutput", "CompletionOutput"]),
        *((f"jengine.{path}", names) for path, names in {**PATHS, **NAMES_IN_ROOMS}.items()),
    ],
)
def test_paths_that_work(path: str, names: list[str]) -> None:
    module = importlib.import_module(path)
    for entry in names:
        name, (where, ours) = home_of(entry)
        assert getattr(module, name) is getattr(importlib.import_module(where), ours)
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from {path} import Nothing")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("from jengine.sampling_params import GuidedDecodingParams", "StructuredOutputsParams"),
        ("from jengine.config import VllmConfig", "use EngineArgs"),
        ("from jengine import ModelRegistry", "use jengine.register_model"),
        ("from jengine.multimodal.utils import fetch_image", "give images, videos and audio in"),
        ("import jengine.reasoning", "--reasoning-parser names one"),
    ],
)
def test_paths_and_names_that_are_explained(statement: str, message: str) -> None:
    with pytest.raises(UnsupportedFeature, match=rf"^jengine\.[\w.]+: .*{message}") as caught:
        exec(statement)
    assert isinstance(caught.value, ImportError), "scripts may try and go on without it"


def test_scripts_may_ask_for_what_is_not_there() -> None:
    assert not any(hasattr(jengine, name) for name in UNBUILT_NAMES)
    assert not hasattr(jengine.config, "VllmConfig") and hasattr(jengine, "LLMEngine")


def test_only_what_is_not_built_is_said_to_be_so() -> None:
    reasons = {*UNBUILT_PATHS.values(), *UNBUILT_NAMES.values(), *UNBUILT_METHODS.values()}
    assert {one for one in reasons if not one.endswith(".")} == {
        "checkpoints of the process", "checksums of weights", "fault tolerance",
    }  # fmt: skip


def test_flags_and_settings_of_a_script() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = ["--model", "demo", "--max_num_seqs", "3", "--kv-events-config.publisher", "zmq"]
    args = EngineArgs.from_cli_args(parser.parse_args(given))
    assert args.max_num_seqs == 3 and args.kv_events_config == {"publisher": "zmq"}
    config = KVEventsConfig(publisher="zmq")
    assert config == args.kv_events_config and config.publisher == "zmq"
    with pytest.raises(AttributeError, match="was given no 'topic'"):
        _ = config.topic


def test_the_tables_hide_no_file_of_ours() -> None:
    for path in {*PATHS, *UNBUILT_PATHS}:
        file = ROOT / "jengine" / path.replace(".", "/")
        assert not file.is_dir() and not file.with_suffix(".py").exists(), path
    for path in ("sampling_params", "outputs", "config"):
        module = importlib.import_module(f"jengine.{path}")
        assert not UNBUILT_NAMES.keys() & vars(module).keys()
    for owner in (LLM, AsyncLLM):
        here = UNBUILT_METHODS.keys() & vars(owner).keys()
        assert not here, "built: leave it out of the table"


def test_unknown_modules_stay_unknown() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'jengine\.nothing'"):
        importlib.import_module("jengine.nothing")
    assert importlib.util.find_spec("jengine_nothing") is None


def test_paths_do_not_import_what_is_not_used() -> None:
    code = (
        "import sys; from jengine.engine.arg_utils import EngineArgs; "
        "from jengine.inputs import TokensPrompt; import jengine.entrypoints.llm; "
        "print([m for m in ('jax', 'flax') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("owner", "name"),
    [(LLM, name) for name in OF_LLM.split()] + [(AsyncLLM, name) for name in OF_ASYNC.split()],
)
def test_every_method_of_vllm_is_there_or_explained(owner: Any, name: str) -> None:
    if hasattr(owner, name):
        return
    one = owner.__new__(owner)
    with pytest.raises(UnsupportedFeature, match=rf"^{owner.__name__}\.{name}: "):
        getattr(one, name)
    assert not hasattr(one, name), "scripts may ask whether it is there"


def test_other_attributes_are_unknown() -> None:
    with pytest.raises(AttributeError, match="'LLM' object has no attribute 'genrate'") as caught:
        _ = LLM.__new__(LLM).genrate
    assert not isinstance(caught.value, UnsupportedFeature)
