"""Prompts that are longer than the context are cut on request, and refused otherwise."""

import os

from jengine import LLM, SamplingParams

LONG = "Once upon a time there was a little dog. " * 100


def main() -> None:
    llm = LLM(model=os.environ.get("MODEL", "demo"), max_model_len=256)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    try:
        llm.generate(LONG, params, use_tqdm=False)
    except ValueError as error:
        print(f"refused: {error}")
    for options in (
        {"truncate_prompt_tokens": 32, "truncation_side": "left"},
        {"truncate_prompt_tokens": -1},
    ):
        (output,) = llm.generate(LONG, params, use_tqdm=False, tokenization_kwargs=options)
        print(f"{options}: {len(output.prompt_token_ids)} tokens -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
