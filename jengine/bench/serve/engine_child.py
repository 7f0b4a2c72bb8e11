"""Runs a dataset in an engine without a server, for `jengine bench serve --against engine`.

A program of its own: the load generator imports no jax. In: one JSON line with the model, its
settings and the file of the work, then a line per run. Out: a JSON line for each.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from jengine import LLM, SamplingParams, __version__


def main() -> None:
    """Start the engine, then run the work once per input line."""
    # Whatever writes to standard output must not be among the answers.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    with open(settings["trace"], encoding="utf-8") as file:
        work = [json.loads(line) for line in file]
    prompts = [prompt_of(item["prompt"]) for item in work]
    params = [
        SamplingParams(temperature=0, max_tokens=item["max_tokens"], ignore_eos=True)
        for item in work
    ]
    with LLM(settings["model"], **settings["engine"]) as llm:
        llm.wait_until_warm()
        ready = {"ready": f"jengine {__version__}, in process"}
        say(answers, {**ready, "startup_s": time.perf_counter() - began})
        for _ in sys.stdin:
            llm.reset_prefix_cache()
            began = time.perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds = time.perf_counter() - began
            count = sum(len(output.outputs[0].token_ids) for output in outputs)
            say(answers, {"seconds": seconds, "generated": count})


def prompt_of(prompt: str | list[int]) -> Any:
    """A prompt in the form that `LLM.generate` accepts."""
    return prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}


def say(answers: Any, words: dict[str, Any]) -> None:
    """Print one answer, flushed."""
    print(json.dumps(words), file=answers, flush=True)


if __name__ == "__main__":
    main()
