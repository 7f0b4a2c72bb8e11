"""EleutherAI's lm-eval over HTTP: `local-completions` scores, `local-chat-completions` generates.

In: a server of the demo model, and a Python with lm-eval: pip install 'lm-eval[api]' transformers.
The tasks are files beside this one, so nothing is fetched. Scores must equal those that the same
engine gives without a server.
"""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from jengine import LLM, SamplingParams
from jengine.demo import model_path

TASKS = Path(__file__).parent / "lm_eval_tasks"
# lm-eval adds log-probabilities up in float64 from JSON, which holds float32 exactly.
CLOSE = 1e-4


def check(url: str, python: str) -> dict[str, Any]:
    """Both models of lm-eval, and what is wrong with what they found."""
    completions = {"base_url": f"{url}/v1/completions", "tokenizer": str(model_path())}
    scored = evaluate(python, "local-completions", completions, "jengine_choices")
    chat = {"base_url": f"{url}/v1/chat/completions", "tokenizer_backend": "None"}
    answered = evaluate(python, "local-chat-completions", chat, "jengine_sums", chat=True)
    problems = [*compare_scores(scored["samples"]), *compare_answers(answered["samples"])]
    return {
        "client": f"lm-eval {scored['version']}",
        "local-completions": scored["results"],
        "local-chat-completions": answered["results"],
        "requests": len(scored["samples"]) + len(answered["samples"]),
        "problems": problems,
    }


def evaluate(
    python: str, model: str, arguments: dict[str, str], task: str, *, chat: bool = False
) -> dict[str, Any]:
    """Run lm-eval; its results and samples."""
    given = {"model": "demo", "num_concurrent": "4", "max_retries": "1", **arguments}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            python, "-m", "lm_eval", "run", "--model", model, "--tasks", task,
            "--model_args", ",".join(f"{name}={value}" for name, value in given.items()),
            "--include_path", str(TASKS), "--output_path", folder, "--log_samples",
            *(["--apply_chat_template"] if chat else []),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=TASKS, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{model}: {done.stderr[-3000:]}")
        (results,) = Path(folder).rglob("results_*.json")
        (samples,) = Path(folder).rglob("samples_*.jsonl")
        found = json.loads(results.read_text())
        lines = [json.loads(line) for line in samples.read_text().splitlines()]
    return {
        "version": found.get("lm_eval_version"),
        "results": found["results"][task],
        "samples": sorted(lines, key=lambda one: one["doc_id"]),
    }


def compare_scores(samples: list[dict[str, Any]]) -> list[str]:
    """Log-probabilities of every choice, beside the engine's own."""
    problems = []
    with LLM("demo", max_num_seqs=4, show_progress=False) as llm:
        tokenizer = llm.get_tokenizer()
        for sample in samples:
            for number, response in enumerate(sample["filtered_resps"]):
                context, choice = sample["arguments"][f"gen_args_{number}"].values()
                known = tokenizer.encode(context)
                whole = tokenizer.encode(context + choice)
                params = SamplingParams(max_tokens=1, prompt_logprobs=0)
                (output,) = llm.generate([{"prompt_token_ids": whole}], params, use_tqdm=False)
                rows = list(zip(whole, output.prompt_logprobs, strict=True))[len(known) :]
                wanted = math.fsum(row[token].logprob for token, row in rows)
                found = float(response[0])
                if not math.isclose(found, wanted, abs_tol=CLOSE):
                    problems.append(f"{context + choice!r}: {found}, the engine says {wanted}")
    return problems


def compare_answers(samples: list[dict[str, Any]]) -> list[str]:
    """Greedy answers, beside the engine's own."""
    problems = []
    with LLM("demo", max_num_seqs=4, show_progress=False) as llm:
        for sample in samples:
            question = sample["doc"]["question"]
            messages = [{"role": "user", "content": question}]
            params = SamplingParams(temperature=0, max_tokens=64)
            (output,) = llm.chat(messages, params, use_tqdm=False)
            wanted, found = output.outputs[0].text, sample["resps"][0][0]
            if found != wanted:
                problems.append(f"{question!r}: {found!r}, the engine says {wanted!r}")
    return problems
