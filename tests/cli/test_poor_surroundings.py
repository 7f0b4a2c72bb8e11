"""Commands where something that is usually there is not: files, a home, UTF-8, room on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.tiny_models import write_tiny_native

ROOT = Path(__file__).parent.parent.parent
GENERATE = (
    "generate", "demo", "Once upon a time", "--max-tokens", "3", "--temperature", "0",
    "--executor", "tests.server.scripted:Executor",
)  # fmt: skip


def shell(script: str, *words: str, cwd: Path = ROOT, **environment: str | None) -> tuple[int, str]:
    """Run a line of shell in which "$@" is the command; its status and all that it said."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        ["/bin/bash", "-c", script, "bash", sys.executable, "-m", "jengine", *words],
        env={name: value for name, value in given.items() if value is not None},
        cwd=cwd, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode() + done.stderr.decode("utf-8", "replace")


@pytest.mark.slow
def test_without_a_home_in_a_folder_that_is_read_only_and_with_few_files(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    nowhere: dict[str, str | None] = {
        "HOME": None, "XDG_CACHE_HOME": None, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }  # fmt: skip
    status, said = shell('ulimit -n 64; exec "$@"', *GENERATE, cwd=tmp_path, **nowhere)
    assert status == 0, said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ('exec "$@" >&-', 0),
        ('exec "$@" 2>&-', 0),
        ('exec "$@" <&-', 0),
        ('exec "$@" > /dev/full', 1),
        ('ulimit -n 20; exec "$@"', 0),
    ],
)
def test_a_stream_that_is_closed_or_too_few_files(script: str, status: int) -> None:
    found, said = shell(script, *GENERATE)
    assert (found, "Traceback" in said) == (status, False), said


TINY = """
import resource, sys
import jengine
params = jengine.SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
most = int(sys.argv[2])  # bytes of a file: as a full disk, for this process and its compilers
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
sizes = {"decode_rows": [2], "prefill_tokens": [32], "variants": ["greedy"]}
llm = jengine.LLM(
    sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=32, max_num_seqs=2,
    max_num_batched_tokens=32, compilation_config=sizes, show_progress=False,
)
print(llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0].token_ids)
"""


@pytest.mark.slow
def test_a_disk_without_room_costs_the_caches_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    write_tiny_native(folder, "llama", num_hidden_layers=1, hidden_size=16)
    cache = tmp_path / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    found = []
    for most in (2000, 2**40):  # what the first start left half written must not harm the next
        done = subprocess.run(
            [sys.executable, "-c", TINY, str(folder), str(most)], env=environment, cwd=ROOT,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(done.stdout)
    assert found[0] == found[1] and found[0].count(",") == 2
