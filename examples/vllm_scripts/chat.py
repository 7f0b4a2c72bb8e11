"""One conversation, and several at once."""

import os

from jengine import LLM, SamplingParams

CONVERSATION = [
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello! How can I help you?"},
    {"role": "user", "content": "Tell me a story about a cat."},
]


def main() -> None:
    llm = LLM(model=os.environ.get("MODEL", "demo"), max_model_len=256)
    params = llm.get_default_sampling_params()
    params.max_tokens = 32
    (output,) = llm.chat(CONVERSATION, params)
    print(f"one: {output.outputs[0].text!r}")
    several = [CONVERSATION, CONVERSATION[:1]]
    greedy = SamplingParams(temperature=0.0, max_tokens=16)
    for output in llm.chat(several, sampling_params=greedy, use_tqdm=False):
        print(f"of several: {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")


if __name__ == "__main__":
    main()
