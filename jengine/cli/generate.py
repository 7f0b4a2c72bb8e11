"""`jengine generate`: completes prompts from the command line, a file or stdin.

A single prompt is streamed as bare text; several are printed as pairs or JSON lines.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jengine.cli.answer import pieces_of, stream_answer
from jengine.cli.few_requests import few_requests, models_sampling
from jengine.cli.flags import (
    add_engine_flags,
    add_sampling_flags,
    engine_arguments,
    sampling_arguments,
)
from jengine.cli.leaving import engine_to_the_end
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from jengine.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from jengine import LLM
    from jengine.cli.main import OpenLLM
    from jengine.outputs import RequestOutput

# The API's default of 16 tokens is too short at a terminal.
MAX_TOKENS = 256
USAGE = "MODEL [PROMPT ...] [flags]"
EXAMPLES = """\
examples:
  jengine generate demo "Once upon a time"
  jengine generate ./model --temperature 0 --max-tokens 1k - < prompt.txt
  jengine generate ./model --file prompts.txt --json > answers.jsonl
"""


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder, org/name, or demo")
    parser.add_argument("prompts", metavar="PROMPT", nargs="*", help="a prompt; - reads stdin")
    parser.add_argument("--file", metavar="FILE", help="prompts from a file, one per line")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object per prompt, one per line"
    )
    add_sampling_flags(parser, max_tokens=f"most tokens of an answer [{MAX_TOKENS}]")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    prompts = read_prompts(arguments, terminal)
    given: dict[str, Any] = {"max_tokens": MAX_TOKENS, **sampling_arguments(arguments)}
    # Validates settings before the engine starts, which is slow.
    SamplingParams(**given)
    most = given.get("n", 1) if len(prompts) == 1 else None
    settings = engine_arguments(arguments)
    sampling = {**models_sampling(arguments.model, settings), **given}
    settings = few_requests(settings, sampling, most)
    with engine_to_the_end(open_llm, arguments.model, settings) as llm:
        params = llm.get_default_sampling_params().clone(**given)
        if len(prompts) == 1 and params.n == 1 and not arguments.json:
            return stream_one(llm, prompts[0], params, terminal)
        outputs = llm.generate(prompts, params)
    show = show_json if arguments.json else show_pairs
    show(outputs, terminal)
    return report_errors(outputs, terminal)


def read_prompts(arguments: argparse.Namespace, terminal: Terminal) -> list[str]:
    """Prompts from arguments (- is stdin), then from the file. Raises ConfigError."""
    prompts = [terminal.read_all() if word == "-" else word for word in arguments.prompts]
    if arguments.file is not None:
        try:
            text = Path(arguments.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--file {arguments.file!r} cannot be read: {error}.") from error
        prompts += [line for line in text.splitlines() if line.strip()]
    if not prompts:
        raise ConfigError(
            "there is no prompt. Give one or more after the model, - for stdin, or --file FILE."
        )
    return prompts


def stream_one(llm: LLM, prompt: str, params: SamplingParams, terminal: Terminal) -> int:
    """Stream one completion. Returns the exit status."""
    outputs = llm.stream(prompt, params.clone(output_kind=RequestOutputKind.DELTA))
    with terminal.answer() as write:
        answer = stream_answer(pieces_of(outputs), write)
    terminal.say()
    if answer.interrupted:
        raise KeyboardInterrupt
    if answer.error:
        terminal.note(f"jengine: error: {answer.error}")
    return int(answer.error is not None)


def show_pairs(outputs: list[RequestOutput], terminal: Terminal) -> None:
    """Print prompts with their completions; for a single prompt only completions."""
    for output in outputs:
        if len(outputs) > 1:
            terminal.say(f"Prompt: {output.prompt}")
        for answer in output.outputs:
            terminal.say(f"Answer: {answer.text}" if len(outputs) > 1 else answer.text)
        if len(outputs) > 1:
            terminal.say()


def show_json(outputs: list[RequestOutput], terminal: Terminal) -> None:
    """Print each RequestOutput as a JSON line."""
    for output in outputs:
        # asdict's copy turns log-probability tables into lists of dicts.
        fields = dataclasses.asdict(output)
        # A log-probability of minus infinity is null: JSON has no infinity.
        terminal.say(msgspec.json.encode(fields).decode())


def report_errors(outputs: list[RequestOutput], terminal: Terminal) -> int:
    """Print failed requests; returns exit status 1 if there are any."""
    failed = [output for output in outputs if output.error]
    for output in failed:
        terminal.note(f"jengine: error: request {output.request_id}: {output.error}")
    return int(bool(failed))
