"""Cost of structured output, and whether answers conform.

    python -m jengine.bench.grammars [--schemas 500] [--kind json|regex|grammar]
        [--vocabulary 32000] [--engine demo] [--output-json FILE]

Without `--engine` random answers are drawn from the masks of made-up schemas, regular expressions
or EBNF grammars: times of compiling and of masks, and how many finished answers fit. With it, a
model answers the same schemas, and then makes as many tokens of free text.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from jengine.api.llm import LLM
from jengine.bench.frame import Benchmark
from jengine.bench.made_up_tokenizer import write_tokenizer
from jengine.bench.schemas import fits, schema
from jengine.grammar.compiler import GrammarCompiler
from jengine.grammar.matcher import Matcher
from jengine.grammar.shared_tokenizer import data_of
from jengine.grammar.tokens import llguidance_tokenizer
from jengine.sampling_params import SamplingParams
from jengine.structured_outputs import StructuredOutputsParams
from jengine.text.tokenizer import load_tokenizer
from jengine.weights.resolve import resolve_model

LONGEST = 400  # tokens of an answer
ROUNDS = 5  # of answers with and without grammars


class GrammarCase(NamedTuple):
    """A grammar, and a check of answers against it."""

    params: StructuredOutputsParams
    fits: Callable[[str], bool]


@dataclass
class Tally:
    """Counts and times, in milliseconds."""

    compiling: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    finished: int = 0
    fitting: int = 0
    failed: int = 0

    def take(self, case: GrammarCase, text: str) -> None:
        """Count a finished answer, and whether it conforms."""
        self.finished += 1
        with suppress(ValueError):  # what is not JSON fits nothing
            self.fitting += case.fits(text)

    def report(self) -> dict[str, Any]:
        return {
            "finished": self.finished, "fitting": self.fitting, "failed": self.failed,
            "compile_ms": _percentiles(self.compiling), "mask_ms": _percentiles(self.masks),
        }  # fmt: skip


def _percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    found = np.percentile(values, [50, 99, 100])
    return {
        name: round(float(one), 4) for name, one in zip(("p50", "p99", "max"), found, strict=True)
    }


def rules(count: int) -> list[dict[str, Any]]:
    """Generated JSON schemas."""
    draw = random.Random(0)  # noqa: S311 - not for secrets
    return [schema(draw) for _ in range(count)]


def spec_of(rule: dict[str, Any]) -> StructuredOutputsParams:
    """A schema's spec without optional whitespace, so that random answers end."""
    return StructuredOutputsParams(json=rule, disable_any_whitespace=True)


def cases(kind: str, count: int) -> list[GrammarCase]:
    """Generated cases of a kind, deterministic."""
    if kind == "json":
        return [
            GrammarCase(spec_of(rule), lambda text, rule=rule: fits(rule, json.loads(text)))
            for rule in rules(count)
        ]
    draw = random.Random(0)  # noqa: S311 - not for secrets
    made = [pattern(draw) for _ in range(count)]
    return [
        GrammarCase(
            StructuredOutputsParams(**{kind: getattr(one, kind)}),
            lambda text, one=one: re.fullmatch(one.regex, text) is not None,
        )
        for one in made
    ]


def draw_answers(folder: Path, count: int, kind: str = "json") -> dict[str, Any]:
    """Sample random answers from the token masks, without a model."""
    tokenizer, tally = load_tokenizer(folder), Tally()
    compiler = GrammarCompiler(
        lambda: llguidance_tokenizer(data_of(tokenizer), tokenizer.vocab_size, ())
    )
    made = compiler.tokenizer
    assert made is not None, "made from a tokenizer"
    mask = np.empty(-(-made.vocab_size // 32), np.int32)
    rng = np.random.default_rng(0)
    for case in cases(kind, count):
        began = time.perf_counter()
        compiled = compiler.compiled(case.params.spec())
        tally.compiling.append(1e3 * (time.perf_counter() - began))
        assert compiled is not None, "not only checked"
        matcher = Matcher(compiled.deep_copy(), made.eos_tokens, made.eos_tokens)
        _draw_answer(matcher, case, mask, rng, tally, made)
    return {"kind": kind, "vocabulary": made.vocab_size, **tally.report()}


def _draw_answer(
    matcher: Matcher,
    case: GrammarCase,
    mask: np.ndarray,
    rng: np.random.Generator,
    tally: Tally,
    tokenizer: Any,
) -> None:
    answer: list[int] = []
    while len(answer) < LONGEST and not matcher.is_terminated:
        began = time.perf_counter()
        matcher.fill(mask)
        tally.masks.append(1e3 * (time.perf_counter() - began))
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        answer.append(int(rng.choice(allowed)))
        if not matcher.advance(answer[-1:]):
            tally.failed += 1
            return
    if matcher.is_terminated:
        tally.take(case, tokenizer.decode_bytes(answer[:-1]).decode("utf-8", "replace"))


def run_engine(model: str, count: int, rows: int) -> dict[str, Any]:
    """Answer the schemas with a model; also measures throughput against free text."""
    # Every program that is needed, before anything is measured.
    compilation = {"variants": ["sampled", "adjusted"], "wait_for": "all"}
    settings = {"max_num_seqs": rows, "compilation_config": compilation, "show_progress": False}
    llm, tally = LLM(model, max_model_len=1024, **settings), Tally()
    asked = cases("json", count)
    ruled = [
        SamplingParams(structured_outputs=case.params, max_tokens=LONGEST, seed=number)
        for number, case in enumerate(asked)
    ]
    outputs = llm.generate(["Make one."] * count, ruled)  # programs and grammars
    lengths = [len(one.outputs[0].token_ids) for one in outputs]
    for case, output in zip(asked, outputs, strict=True):
        (answer,) = output.outputs
        if answer.finish_reason == "stop":
            tally.take(case, answer.text)
        tally.failed += answer.finish_reason == "error"
    free = [
        SamplingParams(max_tokens=one, seed=i, ignore_eos=True) for i, one in enumerate(lengths)
    ]
    with_rules, without = in_turn(llm, ruled, free)
    tokens = sum(lengths)
    return {
        **tally.report(), "tokens": tokens, "ruled_tokens_per_s": tokens / with_rules,
        "free_tokens_per_s": tokens / without, "ratio": without / with_rules,
    }  # fmt: skip


def in_turn(
    llm: LLM, ruled: list[SamplingParams], free: list[SamplingParams]
) -> tuple[float, float]:
    """Median seconds of constrained and free runs, which alternate."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for kept, params in zip(seconds, (ruled, free), strict=True):
            began = time.perf_counter()
            llm.generate(["Make one."] * len(params), params, use_tqdm=False)
            kept.append(time.perf_counter() - began)
    return median(seconds[0]), median(seconds[1])


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure with a model, or with a tokenizer alone."""
    if args.engine:
        return run_engine(args.engine, args.schemas, args.rows)
    if not args.vocabulary:
        return draw_answers(resolve_model(args.tokenizer), args.schemas, args.kind)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), args.vocabulary)
        return draw_answers(Path(folder), args.schemas, args.kind)


FLAGS = {
    "--schemas": 500,
    "--kind": {"choices": ("json", "regex", "grammar"), "default": "json"},
    "--tokenizer": {"default": "demo", "help": "folder of a tokenizer"},
    "--vocabulary": {"type": int, "help": "a made-up tokenizer of this size instead"},
    "--engine": {"help": "a model that answers"},
    "--rows": 32,
}
main = Benchmark("grammars", __doc__, FLAGS, run).main


WORDS = ("alpha", "beta", "gamma", "x", "id-", "no. ", "yes")
SETS = ("a-z", "0-9", "A-F", "a-z0-9", "xyz")
DEEPEST = 3


class Pattern(NamedTuple):
    """One language in both notations."""

    regex: str
    rule: str  # the right side of a rule of GBNF

    @property
    def grammar(self) -> str:
        """The complete grammar."""
        return f"root ::= {self.rule}\n"


def pattern(draw: random.Random, depth: int = 0) -> Pattern:
    """A random language whose answers are finite."""
    simple = [_word, _set]
    nested = [_sequence, _choice, _repeated]
    if depth == 0:
        return _sequence(draw, depth)
    return draw.choice(simple if depth >= DEEPEST else simple + nested)(draw, depth)


def _word(draw: random.Random, depth: int) -> Pattern:
    word = draw.choice(WORDS)
    return Pattern(re.escape(word), json.dumps(word))


def _set(draw: random.Random, depth: int) -> Pattern:
    one = f"[{draw.choice(SETS)}]"
    return Pattern(one, one)


def _sequence(draw: random.Random, depth: int) -> Pattern:
    parts = [pattern(draw, depth + 1) for _ in range(draw.randint(1, 4))]
    return Pattern("".join(one.regex for one in parts), " ".join(one.rule for one in parts))


def _choice(draw: random.Random, depth: int) -> Pattern:
    parts = [pattern(draw, depth + 1) for _ in range(draw.randint(2, 3))]
    return Pattern(
        f"({'|'.join(one.regex for one in parts)})", f"({' | '.join(one.rule for one in parts)})"
    )


def _repeated(draw: random.Random, depth: int) -> Pattern:
    # Not of what is repeated itself: llguidance's reader of GBNF takes such brackets away.
    one = draw.choice((_word, _set, _choice))(draw, depth + 1)
    suffix = draw.choice(("?", "{1,3}", "{2}", "{0,4}"))
    return Pattern(f"({one.regex}){suffix}", f"({one.rule}){suffix}")


if __name__ == "__main__":
    raise SystemExit(main())
