"""Sampling: several answers to one prompt, seeds, log-probabilities, stop strings, penalties.

A seeded request gives the same tokens whatever else runs beside it.
"""

import math

from jengine import LLM, SamplingParams


def main() -> None:
    settings = {"variants": ["full"], "decode_rows": [8], "prefill_tokens": [128]}
    with LLM("demo", max_num_seqs=8, compilation_config=settings) as llm:
        prompt = "Once upon a time"
        params = SamplingParams(n=3, temperature=0.9, top_p=0.95, seed=7, max_tokens=24)
        first = llm.generate(prompt, params)[0]
        for answer in first.outputs:
            print(f"[{answer.index}] {answer.text!r}")
        crowd = llm.generate([prompt, "Long ago", "The sea"], params)
        same = [answer.token_ids for answer in crowd[0].outputs]
        assert same == [answer.token_ids for answer in first.outputs], "seeds fix the tokens"

        params = SamplingParams(temperature=0, max_tokens=6, logprobs=3)
        scored = llm.generate(prompt, params)[0].outputs[0]
        assert scored.logprobs is not None
        for token, table in zip(scored.token_ids, scored.logprobs, strict=True):
            shares = {entry.decoded_token: math.exp(entry.logprob) for entry in table.values()}
            print(
                f"{table[token].decoded_token!r:>12}", {k: round(v, 3) for k, v in shares.items()}
            )

        params = SamplingParams(temperature=0, max_tokens=64, stop=["."], repetition_penalty=1.2)
        stopped = llm.generate(prompt, params)[0].outputs[0]
        print(f"{stopped.text!r} ({stopped.finish_reason}, {stopped.stop_reason!r})")


if __name__ == "__main__":
    main()
