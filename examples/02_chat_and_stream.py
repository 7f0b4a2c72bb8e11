"""A conversation, streamed as it is written; then several conversations at once.

Leaving the loop early, or Ctrl-C, stops that answer only: the engine stays usable.
"""

from jengine import LLM, RequestOutputKind, SamplingParams


def stream(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> str:
    """Print an answer while it grows; the whole answer."""
    parts = []
    for output in llm.stream_chat(messages, params):
        print(output.outputs[0].text, end="", flush=True)
        parts.append(output.outputs[0].text)
    print()
    return "".join(parts)


def main() -> None:
    with LLM("demo", max_num_seqs=4, compilation_config={"variants": ["greedy"]}) as llm:
        params = SamplingParams(temperature=0, max_tokens=96, output_kind=RequestOutputKind.DELTA)
        messages = [{"role": "user", "content": "What is 23 + 45?"}]
        answer = stream(llm, messages, params)
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "Tell me a story about a fox."},
        ]
        stream(llm, messages, params)

        questions = ["What is 12 + 34?", "What is 50 + 27?", "Who are you?"]
        conversations = [[{"role": "user", "content": text}] for text in questions]
        for text, output in zip(questions, llm.chat(conversations, params), strict=True):
            print(f"{text} {output.outputs[0].text}")


if __name__ == "__main__":
    main()
