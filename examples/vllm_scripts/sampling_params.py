"""Parameters of each prompt's own: seeds, stops, several answers, biases, lengths."""

import os

from jengine import LLM, SamplingParams

PROMPT = "Once upon a time"
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=12),
    SamplingParams(n=3, temperature=1.0, seed=7, max_tokens=8),
    SamplingParams(temperature=0.0, max_tokens=40, stop=["."], include_stop_str_in_output=True),
    SamplingParams(temperature=0.0, max_tokens=8, min_tokens=8, ignore_eos=True),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.05, seed=3, repetition_penalty=1.2),
    SamplingParams(temperature=0.0, presence_penalty=0.5, frequency_penalty=0.5, max_tokens=12),
    SamplingParams(temperature=0.0, bad_words=["girl"], max_tokens=12),
    SamplingParams(temperature=0.0, allowed_token_ids=[300, 301, 302], max_tokens=4),
    SamplingParams(temperature=0.0, logit_bias={301: 100.0}, max_tokens=4),
]


def main() -> None:
    llm = LLM(model=os.environ.get("MODEL", "demo"), max_model_len=256)
    outputs = llm.generate([PROMPT] * len(PARAMS), sampling_params=PARAMS)
    for output in outputs:
        for answer in output.outputs:
            print(f"{answer.finish_reason} {answer.stop_reason!r} {answer.text!r}")
    print(f"no prompts, no answers: {llm.generate([], PARAMS[0])}")


if __name__ == "__main__":
    main()
