"""Answer a list of prompts."""

import os

from jengine import LLM, SamplingParams

PROMPTS = ["Once upon a time", "The little dog", "One day, Tom", "In the garden"]


def main() -> None:
    llm = LLM(model=os.environ.get("MODEL", "demo"), max_model_len=256)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, seed=1))
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
