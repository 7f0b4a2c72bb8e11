"""`jengine cache`: what one machine has compiled is found by another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from jengine.runner.disk.size_record import PREFIX
from pallas_kernels.choice import cpu_problem
from tests.cli.fake_llm import FakeLLM, run

SETTINGS = (
    "--max-num-seqs", "2", "--max-num-batched-tokens", "34", "--max-model-len", "64",
    "--compilation-config.variants", "greedy", "--compilation-config.decode-rows", "2",
    "--compilation-config.prefill-tokens", "32",
)  # fmt: skip
# An engine with the same settings, and what JAX tells of its cache meanwhile.
START = """
import collections, json, sys
import jax.monitoring
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event.rsplit("/", 1)[-1]]))
import jengine
compilation = {"variants": ["greedy"], "decode_rows": [2], "prefill_tokens": [32]}
llm = jengine.LLM("demo", max_num_seqs=2, max_num_batched_tokens=34, max_model_len=64,
                  compilation_config=compilation)
llm.wait_until_warm()
llm.generate("Once", jengine.SamplingParams(temperature=0, max_tokens=2), use_tqdm=False)
print(json.dumps(seen))
"""


def python(home: Path, *words: str) -> str:
    """Run Python with a cache of its own below this home."""
    without = {key: value for key, value in os.environ.items() if not key.startswith("JAX_PERSIST")}
    without.pop("JAX_COMPILATION_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, *words],
        env={**without, "XDG_CACHE_HOME": str(home), "HOME": str(home)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_engine_starts_from_a_bundle_without_compiling(tmp_path: Path) -> None:
    bundle, first, second = tmp_path / "warm.zip", tmp_path / "first", tmp_path / "second"
    said = python(first, "-m", "jengine", "cache", "save", str(bundle), "demo", *SETTINGS)
    assert "4 programs of steps" in said  # one forward for each size, and what follows it
    # Every program, and the size of the cache that they were compiled for.
    kept = first / "jengine" / "xla"
    others = {file.name for pattern in ("*-cache", f"{PREFIX}*") for file in kept.glob(pattern)}
    with zipfile.ZipFile(bundle) as archive:
        packed = {Path(name).name for name in archive.namelist()} - {"manifest.json"}
    libraries = {file.name for file in (first / "jengine" / "kernels").glob("*.so")}
    assert packed == others | libraries and len(packed) > 2
    assert bool(libraries) == (cpu_problem() is None)
    assert sum(name.startswith(PREFIX) for name in packed) == 1
    assert "it fits this machine" in python(second, "-m", "jengine", "cache", "show", str(bundle))
    python(second, "-m", "jengine", "cache", "load", str(bundle))
    seen = json.loads(python(second, "-c", START).splitlines()[-1])
    assert seen["cache_hits"] == seen["compile_requests_use_cache"] > 2
    assert "cache_misses" not in seen
    carried = {file.name for file in (second / "jengine" / "kernels").glob("*.so")}
    assert carried == libraries  # and no other has been compiled
    # Without compiling anything the same bundle can be made again.
    again = tmp_path / "again.zip"
    python(second, "-m", "jengine", "cache", "save", str(again), "demo", *SETTINGS)
    with zipfile.ZipFile(again) as archive:
        assert {Path(name).name for name in archive.namelist()} == {*packed, "manifest.json"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["save", "a.zip"], "save FILE MODEL"),
        (["load"], "load FILE"),
        (["save", "a.zip", "demo", "--executor", "ray"], "workers compile on their own hosts"),
        (["save", "a.zip", "demo", "--enforce-eager"], "compiles no programs"),
        (["save", "a.zip", "demo", "--compilation-config.cache-dir", "false"], "no compile cache"),
        (["save", "no/where/a.zip", "demo"], "there is no folder"),
        (["save", "nothing-is-used.zip", "demo"], "has used no entry"),
        (["load", "nowhere.zip"], "No such file"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(FakeLLM(), "cache", *words)
    assert result.status == 1 and complaint in result.err
    assert not list(tmp_path.iterdir())


def test_a_bundle_is_not_overwritten_by_chance(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("precious")
    result = run(FakeLLM(), "cache", "save", str(tmp_path / "a.zip"), "demo")
    assert result.status == 1 and "--overwrite" in result.err
    assert (tmp_path / "a.zip").read_text() == "precious"


def test_the_cache_itself_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "jit_step-1-cache").write_bytes(b"x" * 1_500_000)
    result = run(FakeLLM(), "cache", "show", "--cache-dir", str(tmp_path))
    assert result.out == f"{tmp_path}: 1 entries, 1.5 MB\n"
