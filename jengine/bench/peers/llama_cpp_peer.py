"""llama.cpp on a trace: sequences in one context, batched as its server does, greedy.

Running sequences come first in a batch, then prompts of waiting ones while there is room.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from typing import Any

import llama_cpp as api
import numpy as np

BATCH = 2048  # llama.cpp's default


class Sequence:
    """A request in one of the context's sequences."""

    def __init__(self, item: dict[str, Any], number: int) -> None:
        self.tokens = deque(item["prompt_token_ids"])  # still to be read
        self.left = item["max_tokens"]
        self.number = number
        self.position = 0


class LlamaCppEngine:
    """A model, and one context for all sequences."""

    def __init__(self, settings: dict[str, Any]) -> None:
        api.llama_backend_init()
        file = settings["model"].encode()
        self.model = api.llama_model_load_from_file(file, api.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {settings['model']}")
        self.most, cores = settings["max_num_seqs"], len(os.sched_getaffinity(0))
        params = api.llama_context_default_params()
        params.n_ctx = self.most * settings["max_model_len"]
        params.n_batch, params.n_seq_max, params.kv_unified = BATCH, self.most, True
        params.n_threads = params.n_threads_batch = cores
        self.context = api.llama_init_from_model(self.model, params)
        self.batch = api.llama_batch_init(BATCH, 0, 1)
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))

    def run(self, trace: list[dict[str, Any]]) -> int:
        """Answer everything; returns the number of generated tokens."""
        memory = api.llama_get_memory(self.context)
        api.llama_memory_clear(memory, True)
        waiting, free = deque(trace), list(range(self.most))
        running: list[Sequence] = []
        generated = 0
        while waiting or running:
            while waiting and free:
                running.append(Sequence(waiting.popleft(), free.pop()))
            for sequence, row in self._step(running):
                generated += 1
                sequence.left -= 1
                sequence.tokens.append(self._greedy(row))
                if sequence.left == 0:
                    api.llama_memory_seq_rm(memory, sequence.number, -1, -1)
                    free.append(sequence.number)
            running = [one for one in running if one.left]
        return generated

    def _step(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """Decode one batch; returns sequences that are read to their end, with their rows."""
        batch, ends = self.batch, []
        batch.n_tokens = 0
        for sequence in sorted(running, key=lambda one: len(one.tokens) > 1):
            while sequence.tokens and batch.n_tokens < BATCH:
                at = batch.n_tokens
                batch.token[at], batch.pos[at] = sequence.tokens.popleft(), sequence.position
                batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence.number
                batch.logits[at] = not sequence.tokens
                if not sequence.tokens:
                    ends.append((sequence, at))
                sequence.position += 1
                batch.n_tokens += 1
        if status := api.llama_decode(self.context, batch):
            raise SystemExit(f"llama_decode gave {status}")
        return ends

    def _greedy(self, row: int) -> int:
        logits = api.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())


def main() -> None:
    """Load the model, then run the trace once per input line."""
    # llama.cpp may log to standard output, where the answers go.
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)
    settings = json.loads(sys.stdin.readline())
    began = time.perf_counter()
    engine = LlamaCppEngine(settings)
    with open(settings["trace"], encoding="utf-8") as file:
        trace = [json.loads(line) for line in file]
    version = f"llama.cpp of llama-cpp-python {api.__version__}"
    ready = {"ready": version, "startup_s": time.perf_counter() - began}
    print(json.dumps(ready), file=answers, flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        count = engine.run(trace)
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "generated": count}), file=answers, flush=True)


if __name__ == "__main__":
    main()
