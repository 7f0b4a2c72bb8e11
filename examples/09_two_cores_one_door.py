"""Two engine cores behind one server: requests that begin alike go to the same core.

Each core is a process with its own half of the processors (or its own GPUs). One that dies takes
its own requests with it and no others. The server's metrics tell them apart by the label `engine`.
"""

import asyncio
import re
import runpy
import urllib.request
from pathlib import Path

import openai

served = runpy.run_path(str(Path(__file__).with_name("08_serve_and_call.py")))["served"]
STORIES = ("Once upon a time there was a little fox. ", "The old man went to the sea. ")


async def answer(client: openai.AsyncOpenAI, prompt: str) -> str:
    """The text that follows a prompt."""
    found = await client.completions.create(model="demo", prompt=prompt, max_tokens=24)
    return found.choices[0].text


def tokens_run(url: str) -> dict[str, int]:
    """Tokens that each core has run, prompts included, but for those found in its cache."""
    with urllib.request.urlopen(f"{url}/metrics") as response:
        text = response.read().decode()
    found = re.findall(r'iteration_tokens_total_sum\{.*engine="(\d+)".*\} (\S+)', text)
    return {engine: int(float(count)) for engine, count in found}


async def ask_all(url: str) -> None:
    """Several requests at once, in two families that share their beginning."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none is wanted here")
    prompts = [STORIES[i % 2] * 8 + f"It was day {i}" for i in range(16)]
    for text in await asyncio.gather(*(answer(client, prompt) for prompt in prompts)):
        print(repr(text[:60]))


def main() -> None:
    flags = ("--max-num-seqs", "4", "--max-model-len", "512")
    with served("--data-parallel-size", "2", *flags) as url:
        asyncio.run(ask_all(url))
        print("tokens run by each core:", tokens_run(url))


if __name__ == "__main__":
    main()
