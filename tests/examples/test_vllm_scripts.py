"""Scripts in the manner of vLLM's examples: they run here, and use nothing that vLLM lacks."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import jengine
from jengine.assembly.settings.args import EngineArgs
from tests.api.engines import SMALL_DEMO
from tests.assembly.vllm_arguments import VLLM_ARGUMENTS

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = sorted((ROOT / "examples" / "vllm_scripts").glob("*.py"))
# Keyword arguments of vLLM 0.33, for the calls that the scripts make.
PROMPTS = "prompts sampling_params use_tqdm lora_request priority tokenization_kwargs"
ENGINE = {"model", "enforce_eager", *VLLM_ARGUMENTS}
SAMPLING = """n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p
seed stop stop_token_ids ignore_eos max_tokens min_tokens logprobs prompt_logprobs detokenize
skip_special_tokens spaces_between_special_tokens include_stop_str_in_output output_kind logit_bias
allowed_token_ids bad_words"""
KEYWORDS = {
    "LLM": ENGINE,
    "EngineArgs": ENGINE,
    "AsyncEngineArgs": ENGINE,
    "SamplingParams": set(SAMPLING.split()),
    "TokensPrompt": {"prompt_token_ids", "prompt", "cache_salt"},
    "generate": {*PROMPTS.split(), "prompt", "request_id"},
    "chat": {"messages", *PROMPTS.split(), "chat_template", "add_generation_prompt", "tools"},
    "enqueue": set(PROMPTS.split()),
    "enqueue_chat": {"messages", *PROMPTS.split()},
    "wait_for_completion": {"output_type", "use_tqdm"},
}
# What a script must print, besides ending well.
PRINTED = {
    "async_streaming": r"(?m)(^'.*' -> '.+' in \d+ parts\n){3}",
    "basic": r"(?s)('[^\n]+' -> '[^\n]+'\n){4}",
    "chat": r"one: '.+'\nof several: '.+' \(\w+\)\nof several: '.+' \(\w+\)",
    "log_probabilities": r"prompt: first entry None\n(prompt token .*\n)+(token .*\n){3}together",
    "long_prompts": r"refused: .*(?s:.*)'left'\}: 32 tokens.*\n.*: 255 tokens -> '.*'",
    "prefix_caching": r"same answers: True\n(\d\d of \d\d tokens were cached\n){4}cache reset: T",
    "profiling": r"4 tokens\nfiles written: [1-9]",
    "queue_and_wait": r"in order: True\ndevices: 1\n('.+'\n){3}",
    "sampling_params": r"(?s)(\w+ [^\n]+\n){11}no prompts, no answers: \[\]",
    "token_ids": r"\[300, 301, 302\] -> \[.*\]\n\[303, 304\] -> \[.*\]",
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Iterator[jengine.LLM]:
    """One engine, which stands for those that the scripts make."""
    with jengine.LLM("demo", **SMALL_DEMO) as engine:
        yield engine


@pytest.fixture
def shared(llm: jengine.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """`LLM(...)` checks its arguments and gives the shared engine."""

    class Shared:
        def __new__(cls, model: str, **settings: Any) -> Any:
            args = EngineArgs.checked("LLM", model=model, **settings)
            llm.engine.args.profiler_config = args.profiler_config
            return llm

        @classmethod
        def from_engine_args(cls, args: EngineArgs) -> Any:
            return cls(**vars(args))

    class Small(jengine.AsyncLLM):
        def __init__(self, model: str, **settings: Any) -> None:
            super().__init__(model, **{**settings, **SMALL_DEMO})

    monkeypatch.setattr("jengine.api.llm.LLM", Shared)
    monkeypatch.setattr("jengine.api.async_llm.AsyncLLM", Small)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(script: Path, shared: None, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(PRINTED[script.stem], capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prefix_caching", "async_streaming", "token_ids"])
def test_a_script_runs_as_a_program(name: str) -> None:
    script = next(path for path in SCRIPTS if path.stem == name)
    done = subprocess.run(
        [sys.executable, str(script)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert re.search(PRINTED[name], done.stdout)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_uses_nothing_that_vllm_lacks(script: Path) -> None:
    source = script.read_text()
    named = [line for line in source.splitlines() if "jengine" in line]
    assert named and all(line.startswith("from jengine") for line in named)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            )
            given = {word.arg for word in node.keywords}
            assert given <= KEYWORDS.get(name, given), f"{name}({given - KEYWORDS[name]})"


def test_every_script_is_tested() -> None:
    assert [script.stem for script in SCRIPTS] == sorted(PRINTED)
