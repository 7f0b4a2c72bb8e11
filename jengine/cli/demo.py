"""`jengine demo`: runs the bundled model on three questions.

Needs no GPU, network or account; compiles only two or three programs.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from jengine.cli.answer import TimedAnswer, pieces_of, stream_answer
from jengine.cli.leaving import engine_to_the_end
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from jengine import LLM
    from jengine.cli.main import OpenLLM

USAGE = ""
EXAMPLES = ""
BANNER = """\
jengine demo: a tiny model that ships with jengine, on this machine, with nothing downloaded.
Starting: JAX is loaded and the model's steps are compiled (the next start is faster) ...
"""
QUESTIONS = (
    "Tell me a short story about a dragon.",
    "What is 27 + 48?",
    "Give me a JSON object for a cat named Luna who is 3 years old.",
)
CLOSING = """\
Started in {start:.1f} s; then {tokens} tokens in {seconds:.1f} s: {speed:.0f} tokens/s.

Next:
  jengine chat demo                                  talk with it
  jengine generate demo "Once upon a time"           continue a text
  jengine doctor                                     check this machine for larger models
or in Python:
  from jengine import LLM
  llm = LLM("demo")
  print(llm.chat([{{"role": "user", "content": "What is 12 + 34?"}}])[0].outputs[0].text)
"""
MAX_TOKENS = 200
# Each bucket and variant is one program to compile; this command needs few.
SMALL_ENGINE: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 512,
    "compilation_config": {
        "variants": ["greedy"],
        "decode_rows": [4],
        "prefill_tokens": [64],
    },
}


def add_flags(parser: Parser) -> None:
    """No flags of its own."""


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    """Ask the questions and suggest a next command."""
    began = time.perf_counter()
    terminal.say(BANNER)
    with engine_to_the_end(open_llm, "demo", SMALL_ENGINE) as llm:
        start = time.perf_counter() - began
        answers = [ask(llm, question, terminal) for question in QUESTIONS]
    tokens = sum(answer.tokens for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    speed = tokens / seconds if seconds else 0.0
    terminal.write(CLOSING.format(start=start, tokens=tokens, seconds=seconds, speed=speed))
    return 0


def ask(llm: LLM, question: str, terminal: Terminal) -> TimedAnswer:
    terminal.say(f"> {question}")
    params = SamplingParams(
        temperature=0, max_tokens=MAX_TOKENS, output_kind=RequestOutputKind.DELTA
    )
    messages = [{"role": "user", "content": question}]
    with terminal.answer() as write:
        answer = stream_answer(pieces_of(llm.stream_chat(messages, params)), write)
    terminal.say("\n")
    if answer.interrupted:
        raise KeyboardInterrupt
    return answer
