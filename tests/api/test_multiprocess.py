"""An engine whose core runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FRONT = """
import asyncio, sys
from jengine.api.async_requests import AsyncRequests
from jengine.api.front import Front
from jengine.assembly.args import EngineArgs
from jengine.assembly.engine_process import start_engine_process
from jengine.errors import ConfigError
from jengine.executor.scripted import scripted_tokens
from jengine.sampling_params import SamplingParams

VOCAB = 97
PLUGIN = "tests.executor.plugin:ScriptedWorkers"
args = dict(model="demo", executor=PLUGIN, override_generation_config={"temperature": 0.5})
try:
    start_engine_process(EngineArgs(**args, executor_options={"fail": True}))
except ConfigError as error:
    assert str(error) == "told to fail", error
else:
    raise AssertionError("it must fail")

engine = start_engine_process(EngineArgs(**args))
front, requests = Front("test", engine), AsyncRequests(engine.session)
assert front.default_params().temperature == 0.5


async def main():
    ids = front.chat_prompts([{"role": "user", "content": "Hi"}], {
        "chat_template": "{{ messages[0].content }}"})[0]["prompt_token_ids"]
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    prompts = [[5, 6, 7], [8, 9], [number % VOCAB for number in ids]]
    answers = [
        requests.stream(lambda reader, one=one: engine.session.submit(one, params, reader=reader))
        for one in prompts
    ]
    found = [[output async for output in answer][-1] for answer in answers]
    for prompt, output in zip(prompts, found):
        assert output.outputs[0].token_ids == scripted_tokens(prompt, 6, VOCAB), output
    assert front.stats().programs == 3 and front.health()[0].where == "on paper"


asyncio.run(main())
requests.shutdown()
print([name for name in ("jax", "flax", "orbax") if name in sys.modules])
"""


def test_the_server_imports_no_jax() -> None:
    code = (
        "import sys, jengine.cli.serve; "
        "print([name for name in ('jax', 'flax', 'orbax', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_front_of_an_engine_process_imports_no_jax() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FRONT],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
