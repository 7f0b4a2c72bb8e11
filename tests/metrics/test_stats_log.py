"""The regular log line: there when asked for, in the words that people look for."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from jengine import LLM, SamplingParams
from jengine.metrics import stats_log
from tests.models.tiny_models import write_tiny_native

LINE = re.compile(
    r"Engine 000: Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: [\d.]+ "
    r"tokens/s, Running: \d+ reqs, Waiting: \d+ reqs, CPU KV cache usage: [\d.]+%, Prefix cache "
    r"hit rate: [\d.]+%"
)
SETTINGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "compilation_config": {"decode_rows": [2], "prefill_tokens": [64]},
}


@pytest.mark.parametrize("quiet", [True, False])
def test_the_line_is_logged_only_where_asked_for(
    quiet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stats_log, "INTERVAL", 0.0)
    folder = write_tiny_native(tmp_path, "qwen3")
    with (
        caplog.at_level(logging.INFO),
        LLM(str(folder), disable_log_stats=quiet, **SETTINGS) as llm,
    ):
        llm.generate([[5] * 20, [6] * 9, [7]], SamplingParams(temperature=0, max_tokens=4))
    lines = [record.message for record in caplog.records if "Engine 000" in record.message]
    assert bool(lines) is not quiet
    assert all(LINE.fullmatch(line) for line in lines)
