"""Several streams in one asyncio program."""

import asyncio
import os

from jengine.engine.arg_utils import AsyncEngineArgs
from jengine.v1.engine.async_llm import AsyncLLM

from jengine import SamplingParams
from jengine.sampling_params import RequestOutputKind

PROMPTS = ["Once upon a time", "The little dog", "One day, Tom"]


async def stream(engine: AsyncLLM, number: int) -> tuple[str, int]:
    params = SamplingParams(
        max_tokens=12, temperature=0.0, output_kind=RequestOutputKind.DELTA, ignore_eos=True
    )
    text, parts = "", 0
    async for output in engine.generate(
        request_id=f"stream-{number}", prompt=PROMPTS[number], sampling_params=params
    ):
        text += output.outputs[0].text
        parts += 1
        if output.finished:
            break
    return text, parts


async def main() -> None:
    args = AsyncEngineArgs(model=os.environ.get("MODEL", "demo"), max_model_len=256)
    engine = AsyncLLM.from_engine_args(args)
    try:
        answers = await asyncio.gather(*(stream(engine, i) for i in range(len(PROMPTS))))
    finally:
        engine.shutdown()
    for prompt, (text, parts) in zip(PROMPTS, answers, strict=True):
        print(f"{prompt!r} -> {text!r} in {parts} parts")


if __name__ == "__main__":
    asyncio.run(main())
