"""What the engine did: prefix cache, compiled programs, padding, and one plan by hand.

Prompts that begin alike share cache blocks; the ledger lists every compiled step.
"""

from jengine import LLM, SamplingParams


def main() -> None:
    settings = {"variants": ["greedy"], "decode_rows": [2, 8], "prefill_tokens": [32, 128]}
    llm = LLM("demo", max_num_batched_tokens=128, strict=True, compilation_config=settings)
    prefix = "Once upon a time there was a little fox who lived near the river. " * 3
    params = SamplingParams(temperature=0, max_tokens=16)
    llm.generate(prefix, params)
    outputs = llm.generate([prefix + "It", prefix + "He", prefix + "They"], params)
    for output in outputs:
        print(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens from the cache")
    print(llm.stats())
    print(llm.ledger)
    llm.shutdown()


if __name__ == "__main__":
    main()
