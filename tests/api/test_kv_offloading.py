"""Blocks that leave the device and come back have the same bits: every kind of cache and tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.metrics.exporter import core_values
from jengine.request import WireRequest
from jengine.scheduler.tiered_transfers import TieredTransfers
from tests.api.engines import SMALL_DEMO, WINDOW, random_prompts, tiny_engine
from tests.models.tiny_models import write_tiny_native

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=0)
Answer = tuple[list[int], bytes]


def transfers(llm: jengine.LLM) -> TieredTransfers:
    """What plans the copies of an engine's blocks."""
    found = llm.engine.in_process.core.scheduler._transfers
    assert isinstance(found, TieredTransfers)
    return found


def answers(llm: jengine.LLM, prompts: list[list[int]]) -> tuple[list[Answer], list[int]]:
    """Tokens and the bits of log-probabilities, one request after the other; cached tokens."""
    found, cached = list[Answer](), []
    for prompt in prompts:
        (output,) = llm.generate([{"prompt_token_ids": prompt}], PARAMS, use_tqdm=False)
        answer = output.outputs[0]
        found.append((answer.token_ids, np.asarray(answer.logprobs_array).tobytes()))
        cached.append(output.num_cached_tokens)
    return found, cached


def assert_counts_are_right(llm: jengine.LLM) -> None:
    """What /metrics shows of copies, against what keys and values of a block take."""
    (group,) = llm.engine.cache.groups
    numbers = len(group.layers) * group.spec.kv_heads * group.spec.head_dim * group.spec.vectors
    block_bytes = numbers * llm.engine.cache.block_size * jnp.dtype(jnp.bfloat16).itemsize
    made, shown = transfers(llm), core_values(llm.engine.client.state().counts, None)
    assert shown["kv_offload_load_bytes"] == {"": made.loaded * block_bytes}
    assert shown["kv_offload_store_bytes"] == {"": made.saved * block_bytes}
    assert shown["kv_connector_fetched_blocks"] == {"": made.fetched}
    assert shown["kv_connector_failed_blocks"] == {"": made.failed}
    assert 0 < shown["kv_offload_cpu_cache_usage_perc"][""] <= 1


class Nonsense:
    """A connector of a user's that has everything, and brings what is no block."""

    @classmethod
    def scheduler_half(cls, extra: dict[str, Any], namespace: str) -> Nonsense:
        return cls()

    @classmethod
    def worker_half(cls, extra: dict[str, Any], namespace: str) -> Nonsense:
        return cls()

    def __init__(self) -> None:
        self.missing: set[bytes] = set()

    def source(self, wire: WireRequest) -> str:
        return ""

    def holds(self, key: bytes, source: str) -> bool:
        return key not in self.missing

    def lost(self, key: bytes, source: str) -> None:
        self.missing.add(key)

    forget = reset = lambda *_: None

    def finished(self, wire: WireRequest, num_tokens: int) -> dict[str, Any]:
        return {}

    def read(self, key: bytes, source: str) -> Any:
        return (7, "text", [1, 2], b"short")[key[0] % 4]

    def write(self, key: bytes, data: bytes) -> None:
        raise OSError("the disk is full")

    def close(self) -> None:
        pass


def test_what_a_connector_brings_is_checked(
    plain: list[Answer], caplog: pytest.LogCaptureFixture
) -> None:
    config = {
        "kv_connector": "Nonsense", "kv_role": "kv_both", "kv_connector_module_path": __name__,
    }  # fmt: skip
    with jengine.LLM("demo", **DEMO, kv_transfer_config=config) as llm:
        assert answers(llm, PROMPTS) == (plain[:4], [0] * 4)
        assert transfers(llm).failed >= 10 and transfers(llm).fetched == 0
        assert_counts_are_right(llm)
    problems = [record.message for record in caplog.records if record.exc_info]
    assert len(problems) == len(set(problems)) == 2, "each is logged once, not for every block"


def twice(prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt, and then each again when its blocks have left the device."""
    return prompts + prompts


DEMO = {**SMALL_DEMO, "num_gpu_blocks_override": 18}
PROMPTS = random_prompts(100, 70, 110, 90)


@pytest.fixture(scope="module")
def plain() -> list[Answer]:
    with jengine.LLM("demo", **DEMO) as llm:
        found, cached = answers(llm, twice(PROMPTS))
        assert sum(cached) <= 32, "the cache of the device is large enough for all"
    return found


def test_the_hosts_memory_gives_back_what_left_the_device(plain: list[Answer]) -> None:
    with jengine.LLM("demo", **DEMO, kv_offloading_size=0.01) as llm:
        found, cached = answers(llm, twice(PROMPTS))
        assert found == plain
        assert cached == [0] * 4 + [96, 64, 96, 80]
        counts = llm.engine.client.state().counts
        assert counts.external_hits + counts.prefix_hits == sum(cached), "each is counted once"
        assert counts.external_hits >= 160 and counts.prefix_queries == 2 * 370
        assert transfers(llm).loaded >= 10 and transfers(llm).fetched == 0
        assert_counts_are_right(llm)
        llm.reset_prefix_cache()
        assert answers(llm, PROMPTS[:1]) == (plain[:1], [0])


def folder_config(folder: Path, **more: Any) -> dict[str, Any]:
    tier = {"type": "fs", "root_dir": str(folder)}
    return {
        "kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 2_000_000, "secondary_tiers": [tier]},
    }  # fmt: skip


@pytest.mark.slow
def test_a_folder_gives_them_to_the_next_process(plain: list[Answer], tmp_path: Path) -> None:
    config = folder_config(tmp_path)
    with jengine.LLM("demo", **DEMO, kv_transfer_config=config) as llm:
        assert answers(llm, PROMPTS) == (plain[:4], [0] * 4)
    files = sorted(tmp_path.rglob("*.kv"))
    assert len(files) >= 20
    with jengine.LLM("demo", **DEMO, kv_transfer_config=config) as llm:
        assert answers(llm, PROMPTS[:2]) == (plain[:2], [96, 64])
        assert transfers(llm).fetched == 10
        for file in files:  # what is damaged is computed again
            file.write_bytes(file.read_bytes()[:-1] + b"?")
        assert answers(llm, PROMPTS[2:]) == (plain[2:4], [0, 0])
        assert transfers(llm).failed > 0


KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sliding": ("mistral", {"sliding_window": WINDOW}, {}),
    "codes": ("llama", {}, {"kv_cache_dtype": "int8"}),
    "latent": ("deepseek_v3", {}, {}),
    "recurrent": ("qwen3_next", {}, {"mamba_block_size": 32}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cache_comes_back(kind: str, tmp_path: Path) -> None:
    family, model, settings = KINDS[kind]
    folder = write_tiny_native(tmp_path, family, max_position_embeddings=1024, **model)
    small = {"max_model_len": 256, "max_num_seqs": 2, **settings}
    prompts = random_prompts(*[150] * 24)
    found = []
    # Beside a cache that holds everything: with latent attention a hit rounds otherwise than none.
    for own in (
        {"num_gpu_blocks_override": 400},
        {"num_gpu_blocks_override": 60, "kv_offloading_size": 0.05},
    ):
        with tiny_engine(folder, **small, **own) as llm:
            made, cached = answers(llm, twice(prompts))
            found.append(made)
            if "kv_offloading_size" in own:  # only few states stay on the device
                assert min(cached[24:28]) >= 128
                assert transfers(llm).loaded > 0
    assert found[0] == found[1]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_prefix_caching=False"):
        jengine.LLM("demo", **DEMO, kv_offloading_size=1, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"hold no block of each cache group"):
        jengine.LLM("demo", **DEMO, kv_offloading_size=1e-9)
    with pytest.raises(UnsupportedFeature, match="built in are"):
        jengine.LLM("demo", kv_transfer_config={"kv_connector": "X", "kv_role": "kv_both"})
