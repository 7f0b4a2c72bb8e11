"""Prompts that begin alike, without and with the cache of prefixes."""

import os

from jengine import LLM, SamplingParams

PREFIX = (
    "Once upon a time there was a little girl named Lily. She had a red ball and a blue ball, and "
    "she liked to play with them in the garden with her friend Tom and the big dog. "
)
PROMPTS = [PREFIX + end for end in ("One day", "The dog", "Lily", "Tom")]


def main() -> None:
    model = os.environ.get("MODEL", "demo")
    params = SamplingParams(temperature=0.0, max_tokens=12)
    plain = LLM(model=model, max_model_len=256, enable_prefix_caching=False)
    expected = [output.outputs[0].text for output in plain.generate(PROMPTS, params)]
    del plain

    llm = LLM(model=model, max_model_len=256, enable_prefix_caching=True)
    llm.generate(PROMPTS[0], params)  # its prefix is in the cache from now on
    outputs = llm.generate(PROMPTS, params)
    print(f"same answers: {[output.outputs[0].text for output in outputs] == expected}")
    for output in outputs:
        print(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens were cached")
    print(f"cache reset: {llm.reset_prefix_cache()}")


if __name__ == "__main__":
    main()
