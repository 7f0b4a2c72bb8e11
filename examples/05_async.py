"""The engine inside an asyncio program: many requests at once, one of them cancelled."""

import asyncio
import contextlib

from jengine import AsyncLLM, SamplingParams


async def answer(engine: AsyncLLM, prompt: str) -> str:
    """The final text for a prompt."""
    text = ""
    async for output in engine.generate(prompt, SamplingParams(temperature=0, max_tokens=32)):
        text = output.outputs[0].text
    return text


async def main() -> None:
    engine = AsyncLLM("demo", max_num_seqs=4, compilation_config={"variants": ["greedy"]})
    prompts = ["Once upon a time", "Long ago", "Once there was", "One day a little fox"]
    tasks = [asyncio.create_task(answer(engine, prompt)) for prompt in prompts]
    tasks[-1].cancel()  # its request is aborted in the engine as well
    for prompt, task in zip(prompts, tasks, strict=True):
        with contextlib.suppress(asyncio.CancelledError):
            print(f"{prompt!r} -> {await task!r}")
    await engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
