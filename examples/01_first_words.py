"""The smallest program: one engine, two prompts, answers in order.

python examples/01_first_words.py            # the demo model that ships with jengine
python examples/01_first_words.py MODEL_DIR  # any supported Hugging Face folder
"""

import sys

from jengine import LLM, SamplingParams


def main(model: str = "demo") -> None:
    with LLM(model, max_num_seqs=4, compilation_config={"variants": ["greedy"]}) as llm:
        params = SamplingParams(temperature=0, max_tokens=48)
        for output in llm.generate(["Once upon a time", "Long ago"], params):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
