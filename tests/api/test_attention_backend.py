"""The attention backend: chosen by platform, forced by name, refused where it cannot run.

Here the Triton kernels run in Triton's interpreter, through the whole engine.
"""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jengine
from jengine.assembly.sizes.device_defaults import block_tokens
from jengine.config import CacheGroup, CacheSpec
from jengine.errors import ConfigError
from jengine.runner.step import attention_backend as backends
from jengine.sampling import sampler
from pallas_kernels.decode_attention.teams import teams_of
from tests.models.tiny_models import write_tiny_native
from tests.pallas_kernels.implementations import TRITON

GROUPS = (CacheGroup(CacheSpec("full", kv_heads=2, head_dim=8), (0, 1)),)
# One longer than a window and a tile; one that begins like it, in its cache.
PROMPTS = [[5, 6, 7, 8, 9] * 7, [5, 6, 7, 8, 9] * 7 + [12]]

ONE_VARIANT = {"variants": ["greedy"], "prefill_tokens": [64]}


def generate(folder: Path, backend: str, **options: object) -> list[tuple[int, ...]]:
    with jengine.LLM(
        folder, skip_tokenizer_init=True, max_model_len=48, max_num_seqs=2,
        max_num_batched_tokens=64, block_size=8, enforce_eager=True, attention_backend=backend,
        show_progress=False, **{"compilation_config": ONE_VARIANT, **options},
    ) as llm:  # fmt: skip
        prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
        params = jengine.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
        return [tuple(output.outputs[0].token_ids) for output in llm.generate(prompts, params)]


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param("llama", {}, marks=pytest.mark.slow),
        # A sliding window, and a soft cap.
        pytest.param("gemma2", {}, marks=pytest.mark.slow),
        # Every token as a decode row.
        pytest.param(
            "gemma2", {"deterministic": True, "compilation_config": None}, marks=pytest.mark.slow
        ),
        pytest.param("qwen3", {}, marks=pytest.mark.slow),
        # Experts.
        pytest.param("qwen3_moe", {}, marks=pytest.mark.slow),
    ],
)
def test_the_engine_writes_the_same(
    family: str, backend: str, options: dict, tmp_path: Path
) -> None:
    folder = write_tiny_native(tmp_path, family)
    assert generate(folder, backend, **options) == generate(folder, "xla", **options)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [TRITON])
def test_rows_that_share_a_prefix_read_it_together(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that begin with the same 288 tokens, between two others; and not where that is off."""
    found: list[int] = []

    def observed(*arrays: Any, **sizes: Any) -> Any:
        teams = teams_of(*arrays, **sizes)
        jax.debug.callback(lambda shared: found.append(int(shared.max())), teams.shared)
        return teams

    monkeypatch.setattr("pallas_kernels.decode_attention.triton.teams_of", observed)
    jax.clear_caches()
    folder = write_tiny_native(tmp_path, "llama", max_position_embeddings=512)
    shared = [5, 6, 7, 8, 9, 10] * 48
    prompts = [[3, 4] * 150, [*shared, 12], [8, 3] * 20, [*shared, 13, 14, 15]]
    params = jengine.SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

    def answers(backend: str, **options: Any) -> list[list[int]]:
        with jengine.LLM(
            folder, skip_tokenizer_init=True, max_model_len=320, max_num_seqs=4, block_size=16,
            enforce_eager=True, attention_backend=backend, show_progress=False,
            compilation_config={"variants": ["greedy"]}, **options,
        ) as llm:  # fmt: skip
            llm.generate([[*shared, 11]], jengine.SamplingParams(max_tokens=1))
            outputs = llm.generate([{"prompt_token_ids": one} for one in prompts], params)
            return [list(output.outputs[0].token_ids) for output in outputs]

    together = answers(backend)
    assert max(found) == 256
    found.clear()
    assert answers(backend, disable_cascade_attn=True) == together == answers("xla")
    assert not found
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [TRITON])
def test_tokens_are_drawn_alike(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise, filters and settings a row, by kernels and by XLA."""
    used: list[str] = []
    kernels = sampler.sample_tokens

    def recorded(*arrays: object, implementation: str) -> object:
        used.append(implementation)
        return kernels(*arrays, implementation=implementation)

    monkeypatch.setattr(sampler, "sample_tokens", recorded)
    folder = write_tiny_native(tmp_path, "llama")
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.8, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 1.3, "seed": 5, "top_p": 0.7, "repetition_penalty": 1.2, "logprobs": 2},
    ]
    params = [jengine.SamplingParams(max_tokens=4, ignore_eos=True, **kind) for kind in kinds]
    found = []
    for chosen in (backend, "xla"):
        with jengine.LLM(
            folder, skip_tokenizer_init=True, max_model_len=32, max_num_seqs=4,
            enforce_eager=True, attention_backend=chosen, show_progress=False,
            compilation_config={"variants": ["full"], "prefill_tokens": [32], "decode_rows": [4]},
        ) as llm:  # fmt: skip
            outputs = llm.generate([[5, 6, 7]] * 4, params)
            found.append([output.outputs[0].token_ids for output in outputs])
    assert set(used) == {backend}
    assert found[0] == found[1]


@pytest.mark.parametrize(("problem", "chosen"), [(None, "cpu"), ("no compiler.", "xla")])
def test_a_cpu_uses_its_kernels_where_they_can_be_compiled(
    problem: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(backends, "cpu_problem", lambda: problem)
    assert backends.attention_backend("auto", GROUPS) == chosen
    assert caplog.messages[-1] == f"Attention backend: {chosen}"
    assert ("no compiler." in caplog.text) == (problem is not None)
    assert backends.attention_backend("xla", GROUPS) == "xla"
    if problem is not None:
        with pytest.raises(ConfigError, match=r"attention_backend='cpu': no compiler.*'xla'"):
            backends.attention_backend("cpu", GROUPS)


def test_cpu_kernels_are_refused_for_heads_of_an_odd_size_and_on_gpus() -> None:
    assert "even size" in str(backends.kernels_problem("cpu", "cpu", {64, 65}))
    assert "JAX runs on gpu" in str(backends.kernels_problem("cpu", "gpu", {64}))


@pytest.mark.parametrize(("problem", "chosen"), [(None, "triton"), ("no such chip.", "xla")])
def test_a_gpu_uses_triton_where_it_can(
    problem: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(backends.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(backends, "triton_problem", lambda *_: problem)
    assert backends.attention_backend("auto", GROUPS) == chosen
    assert caplog.messages[-1] == f"Attention backend: {chosen}"
    assert ("no such chip." in caplog.text) == (problem is not None)
    assert backends.attention_backend("xla", GROUPS) == "xla"


def test_flash_attention_4_is_triton_with_other_kernels_for_prompts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    registered: list[bool] = []
    monkeypatch.setattr(backends.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(backends, "fa4_problem", lambda *_: None)
    monkeypatch.setattr(backends, "unserved_device", lambda _: None)
    monkeypatch.setattr(backends, "register_fa4", lambda: registered.append(True))
    assert backends.attention_backend("fa4", GROUPS) == "triton"
    assert (caplog.messages[-1], registered) == ("Attention backend: fa4", [True])
    monkeypatch.setattr(backends, "fa4_problem", lambda *_: "fa4-jax is not installed.")
    with pytest.raises(ConfigError, match=r"attention_backend='fa4': fa4-jax is not"):
        backends.attention_backend("fa4", GROUPS)


@pytest.mark.parametrize(
    ("backend", "given", "used"), [("triton", None, 16), ("fa4", None, 128), ("fa4", 32, 32)]
)
def test_flash_attention_4_has_blocks_for_bulk_copies(
    backend: str, given: int | None, used: int
) -> None:
    asked: Any = SimpleNamespace(
        cache=SimpleNamespace(block_size=given),
        steps=SimpleNamespace(attention_backend=backend),
        parallel=SimpleNamespace(decode_context_parallel_size=1),
    )
    assert block_tokens(asked) == used


def test_entries_of_latent_attention_may_be_long_and_are_not_stored_in_codes() -> None:
    latent = (CacheGroup(CacheSpec("latent", 1, 577), (0,)),)
    assert backends.available_backend("auto", latent) == backends.available_backend("auto", GROUPS)
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='int8'.*latent attention"):
        backends.attention_backend("auto", latent, "int8")


def test_what_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "triton_problem", lambda *_: "JAX sees CPUs only.")
    with pytest.raises(ConfigError, match=r"attention_backend='triton'.*CPUs only.*'xla'"):
        backends.attention_backend("triton", GROUPS)
    with pytest.raises(ConfigError, match=r"attention_backend='flash'.*'auto', 'xla'"):
        jengine.LLM("demo", attention_backend="flash")
