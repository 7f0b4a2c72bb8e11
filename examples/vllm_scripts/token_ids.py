"""Token ids in, token ids out, without a tokenizer in the engine."""

import os

from jengine.inputs import TokensPrompt

from jengine import LLM, SamplingParams


def main() -> None:
    llm = LLM(model=os.environ.get("MODEL", "demo"), max_model_len=256, skip_tokenizer_init=True)
    params = SamplingParams(temperature=0.0, max_tokens=5, detokenize=False)
    prompts = [TokensPrompt(prompt_token_ids=[300, 301, 302]), {"prompt_token_ids": [303, 304]}]
    for output in llm.generate(prompts, params):
        print(f"{output.prompt_token_ids} -> {output.outputs[0].token_ids}")


if __name__ == "__main__":
    main()
