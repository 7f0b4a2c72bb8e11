"""The memory picture adds up: weights, each cache group, row state, scratch memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

from jengine import LLM, SamplingParams
from jengine.api.base import engine_summary
from jengine.api.memory_picture import MemoryPart, MemoryPicture, in_units
from jengine.runner.step.attention_backend import cache_dtype_name
from jengine.runner.step.group_arrays import block_bytes
from pallas_kernels.layout import BFLOAT16_BITS
from tests.api.engines import tiny_engine
from tests.models.tiny_models import write_tiny_native


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = write_tiny_native(tmp_path_factory.mktemp("model"), "gemma2")
    with tiny_engine(folder, "greedy", max_model_len=512) as engine:
        yield engine


def test_the_parts_are_what_the_engine_holds(llm: LLM) -> None:
    llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=2))
    picture = llm.memory()
    names = [part.name for part in picture.parts]
    assert names[:5] == ["weights", "cache", "cache", "row state", "temporaries"]
    engine = llm.engine
    weights, *caches, rows, scratch = picture.parts[:5]
    assert weights.bytes == sum(leaf.nbytes for leaf in engine.loaded.leaves) > 0
    for part, group, blocks in zip(
        caches, engine.cache.groups, engine.cache.num_blocks, strict=True
    ):
        dtype = engine.loaded.state.caches[0].dtype
        assert part.bytes == blocks * block_bytes(group, engine.cache.block_size, dtype)
        assert f"{blocks - 1:,} blocks" in part.detail
    assert {"window of 16" in part.detail for part in caches} == {True, False}
    state = sum(leaf.nbytes for leaf in jax.tree.leaves(engine.loaded.state))
    assert rows.bytes == state - sum(part.bytes for part in caches)
    assert scratch.bytes == max(entry.temp_bytes for entry in llm.ledger.entries.values()) > 0
    assert picture.total == sum(part.bytes for part in picture.parts)
    assert picture.devices == 1


def test_the_cache_has_the_name_of_its_numbers() -> None:
    assert cache_dtype_name(BFLOAT16_BITS) == "bfloat16"
    assert cache_dtype_name(jnp.float32) == "float32"


def test_an_engine_in_one_line(llm: LLM) -> None:
    shown = repr(llm)
    engine = llm.engine
    assert shown.startswith(f"<LLM: {engine.folder} (Gemma2ForCausalLM, ")
    assert "float32), context 512 tokens, 1 x cpu, cache " in shown
    stats = llm.stats()
    late = f", {len(stats.on_first_use)} variants on first use" if stats.on_first_use else ""
    assert f" tokens in float32, {stats.programs} programs{late}>" in shown
    assert late, "no engine of these tests compiles everything"
    assert engine_summary(llm, None) == "<LLM: shut down>"


def test_it_prints_and_draws_every_part(llm: LLM) -> None:
    picture = llm.memory()
    page = picture._repr_html_()
    for part in picture.parts:
        assert part.name in str(picture) and part.name in page
        assert in_units(part.bytes) in str(picture) and in_units(part.bytes) in page
    widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", page)]
    assert len(widths) == len(picture.parts)
    shares = [100 * part.bytes / picture.total for part in picture.parts]
    assert widths == pytest.approx([max(share, 0.4) for share in shares], abs=0.01)


def test_free_memory_is_drawn_but_not_counted() -> None:
    parts = (MemoryPart("weights <1>", 3_000_000_000, "a & b"),)
    picture = MemoryPicture(parts, devices=4, free=1_000_000_000)
    assert picture.total == 3_000_000_000
    assert "on each of 4 devices" in str(picture) and "1.00 GB" in str(picture)
    page = picture._repr_html_()
    assert "weights &lt;1&gt;" in page and "a &amp; b" in page
    assert re.findall(r"width: ([\d.]+)%", page) == ["75.00", "25.00"]


def test_units() -> None:
    assert [in_units(n) for n in (0, 999, 1000, 2_500_000)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "2.50 MB",
    ]


def test_many_groups_have_colours() -> None:
    parts = tuple(MemoryPart(f"part {index}", 10, "") for index in range(20))
    assert MemoryPicture(parts, devices=1)._repr_html_().count("&#9632;") == 20
