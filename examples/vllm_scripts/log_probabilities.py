"""Log-probabilities of the answer and of the prompt."""

import os

from jengine import LLM, SamplingParams


def main() -> None:
    llm = LLM(model=os.environ.get("MODEL", "demo"), max_model_len=256, max_logprobs=5)
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=2, prompt_logprobs=1)
    (output,) = llm.generate("Once upon a time", params)
    print(f"prompt: first entry {output.prompt_logprobs[0]}")
    for token, table in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        print(f"prompt token {token}: {table[token].logprob:.3f}, rank {table[token].rank}")
    answer = output.outputs[0]
    for token, table in zip(answer.token_ids, answer.logprobs, strict=True):
        best = sorted(table.values(), key=lambda one: one.rank)
        words = ", ".join(f"{one.decoded_token!r} {one.logprob:.3f}" for one in best)
        print(f"token {token}: {words}")
    print(f"together: {answer.cumulative_logprob:.3f}")


if __name__ == "__main__":
    main()
