"""A start that finds a little more or less free memory uses the programs of the one before."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.monitoring
import pytest
from jax.experimental.compilation_cache import compilation_cache

import jengine
from jengine.runner.disk.size_record import PREFIX, SizeRecord
from tests.models.tiny_models import write_tiny_native

SEEN: Counter[str] = Counter()
jax.monitoring.register_event_listener(lambda event, **_: SEEN.update([event.rsplit("/", 1)[-1]]))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A compile cache of the test's own."""
    before = jax.config.jax_compilation_cache_dir
    (tmp_path / "cache").mkdir()
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    compilation_cache.reset_cache()
    yield tmp_path / "cache"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_a_second_start_compiles_nothing_though_free_memory_has_changed(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_native(
        tmp_path, "llama", num_hidden_layers=1, hidden_size=16, max_position_embeddings=1024
    )

    def start(megabytes: float) -> tuple[tuple[int, ...], int]:
        free = SimpleNamespace(available=int(megabytes * 1e6))
        monkeypatch.setattr("psutil.virtual_memory", lambda: free)
        SEEN.clear()
        llm = jengine.LLM(
            folder, skip_tokenizer_init=True, max_model_len=1024, max_num_seqs=64,
            compilation_config={
                "variants": ["greedy"], "decode_rows": [64], "prefill_tokens": [512],
                "wait_for": "all",
            },
        )  # fmt: skip
        assert SEEN["compile_requests_use_cache"] >= len(llm.ledger.entries) == 4  # of two parts
        return llm.engine.cache.num_blocks, SEEN["cache_misses"]

    blocks, misses = start(5.4)
    assert blocks < (64 * 64 + 1,) and misses >= 2, "memory decides the size"
    for megabytes in (5.39, 5.6):
        assert start(megabytes) == (blocks, 0)
    larger, misses = start(7.0)
    assert larger > blocks and misses >= 2, "half as much again is worth compiling for"
    assert len(list(cache.glob(f"{PREFIX}*"))) == 1


def test_a_record_is_private_and_one_that_cannot_be_read_is_not_used(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = SizeRecord.of("an engine")
    assert record is not None and record.read() is None
    record.write((320, 64))
    assert record.read() == (320, 64)
    assert record.file.stat().st_mode & 0o777 == 0o600
    assert SizeRecord.of("another") != record
    record.file.write_text("[]")
    with caplog.at_level(logging.WARNING):
        assert record.read() is None
    assert "is not used" in caplog.text


def test_without_a_compile_cache_nothing_is_kept(cache: Path) -> None:
    jax.config.update("jax_compilation_cache_dir", None)
    assert SizeRecord.of("an engine") is None
