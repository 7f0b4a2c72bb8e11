"""The commands with a real engine on a tiny model, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.tiny_models import write_tiny_native
from tests.text.conftest import build_byte_level

# Twelve tokens of a random model are text: an unfinished character at the end is withheld.
CHAT = ("--max-tokens", "12", "--temperature", "0", "--ignore-eos", "--max-model-len", "128")
SMALL = (
    "--compilation-config.prefill_tokens", "32", "--max-num-batched-tokens", "32",
    "--compilation-config.wait-for", "all",
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chatty")
    tokenizer = build_byte_level()
    write_tiny_native(folder, "qwen3", vocab_size=len(tokenizer))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_chat_survives_a_message_that_is_too_long(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jengine", "chat", str(model), *CHAT, *SMALL],
        input=f"hello\n{'x' * 500}\n/reset\nhello\n/stats\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second != ""
    assert "maximum context length is 128 tokens" in done.stderr
    assert "Type /reset to start afresh." in done.stderr
    # Nothing but the two forwards of a small chat, and the sampler of each, was compiled.
    assert "programs 4 (0 compiled after warm-up)" in done.stderr
