"""Compiling: errors that name what is wrong, limits, the deadline, the cache."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from jengine.errors import JengineError, RequestError, UnsupportedFeature
from jengine.grammar import compiler as compiling
from jengine.grammar import guidance
from jengine.grammar.compiler import GrammarCompiler, explained
from jengine.grammar.guidance import MOST_NESTING, nesting
from jengine.grammar.shared_tokenizer import data_of
from jengine.grammar.tokenizer_check import check_tokenizer
from jengine.grammar.tokens import llguidance_tokenizer
from jengine.structured_outputs import StructuredOutputsParams
from jengine.text.tokenizer import wrap_tokenizer
from tests.grammar.letters import WORDS, compiler, ids, matcher, regex
from tests.server.serving import letters

TAGS = (
    '{"structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],'
    ' "triggers": ["<f"]}'
)


@pytest.mark.slow
def test_grammars_take_no_more_memory_than_is_counted() -> None:
    code = (
        "import json, resource\n"
        "from pathlib import Path\n"
        "from jengine.grammar.compiler import GrammarCompiler\n"
        "from jengine.structured_outputs import GrammarSpec\n"
        "from tests.grammar.letters import compiler\n"
        "def resident():\n"
        "    pages = int(Path('/proc/self/statm').read_text().split()[1])\n"
        "    return pages * resource.getpagesize()\n"
        "def schema(seed, size):\n"
        "    names = [f'p{seed}_{i}' for i in range(size)]\n"
        "    kinds = [['string', 'integer', 'number'][i % 3] for i in range(size)]\n"
        "    properties = {name: {'type': kind} for name, kind in zip(names, kinds)}\n"
        "    return json.dumps({'type': 'object', 'properties': properties, 'required': names})\n"
        "one = compiler()\n"
        "def compile(kind, text):\n"
        "    one.compiled(GrammarSpec(kind=kind, text=text))\n"
        "compile('json', schema(-1, 5)), compile('regex', 'a'), compile('choice', '[\"a\"]')\n"
        "before, kept = resident(), one.kept_bytes\n"
        "for seed in range(150):\n"
        "    compile('json', schema(seed, 5)), compile('json', schema(seed, 50))\n"
        "    compile('regex', '[a-z]{2,9}%d (foo|bar)+[0-9]{1,5}' % seed)\n"
        "    compile('choice', json.dumps([f'value {seed} {i}' for i in range(100)]))\n"
        "print(resident() - before, one.kept_bytes - kept)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    taken, counted = map(int, done.stdout.split())
    assert taken <= counted


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "json: the keyword uniqueItems"),
        ({"json": {"type": "strin"}}, "json: Invalid type: strin"),
        ({"json": "{"}, "json is not JSON.*line 1"),
        ({"json": "[]"}, "json is a list: expected a JSON schema"),
        ({"json": False}, "keyword not"),
        ({"json": deep(MOST_NESTING)}, f"nested 65 deep; the most is {MOST_NESTING}"),
        ({"regex": "(a"}, "regex: .*unclosed group"),
        ({"regex": "(?=a)b"}, "regex: .*look-around"),
        ({"regex": "(" * 100 + ")" * 100}, "nested 100 deep"),
        ({"regex": "a" * (5 << 20)}, "regex has 5242880 bytes; the most is 1048576"),
        ({"grammar": "start: missing"}, "grammar: .*missing"),
        ({"choice": ["x"] * 20_001}, "choice has 20001 items"),
        ({"structural_tag": "{}"}, "expected an object with the lists structures"),
        ({"structural_tag": TAGS.replace('"<f"', '"<g"')}, "starts with none of the triggers"),
    ],
)
def test_errors_name_what_is_wrong(given: dict[str, Any], words: str) -> None:
    spec = StructuredOutputsParams(**given).spec()
    for one in (GrammarCompiler(), compiler()):
        began = time.process_time()
        with pytest.raises(RequestError, match=words) as caught:
            one.compiled(spec)
        assert time.process_time() - began < 20
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "given",
    [
        {"json": {"type": "object"}}, {"json": True}, {"json_object": True}, {"regex": "[0-9]+"},
        {"choice": ['a"b', "c\n"]}, {"grammar": 'root ::= "a" [0-9]+'},
        {"grammar": 'start: "a" /[0-9]+/'}, {"structural_tag": TAGS},
        # Exponential for engines that backtrack or build an automaton first.
        {"regex": "(a|b)*a(a|b){30}"}, {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": "(x+x+)+y"},
        {"grammar": '?start: "a" | "b"'}, {"json": {"oneOf": [{"const": 1}, {"const": 2}]}},
        {"json": {"type": "object", "propertyNames": {"type": "string"}}},
    ],
)  # fmt: skip
def test_what_compiles(given: dict[str, Any]) -> None:
    spec = StructuredOutputsParams(**given).spec()
    assert GrammarCompiler().compiled(spec) is None, "only checked"
    assert compiler().compiled(spec) is not None


def test_equal_grammars_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = compiler()
    assert one.compiled(regex("a+")) is one.compiled(regex("a+"))
    assert one.begin(regex("a+")) is one.begin(regex("a+"))


def test_the_cache_forgets_what_was_not_asked_for_lately() -> None:
    one = GrammarCompiler(cache_bytes=3 * compiling.GRAMMAR_BYTES + 1000)
    jobs = {name: one.begin(regex(name)) for name in "abc"}
    assert all(job.wait(60) for job in jobs.values())
    one.begin(regex("a"))
    assert one.begin(regex("d")).wait(60)
    assert one.begin(regex("a")) is jobs["a"], "asked for lately"
    assert one.begin(regex("b")) is not jobs["b"], "the oldest went"
    assert one.kept_bytes <= 3 * compiling.GRAMMAR_BYTES + 1000


def test_a_first_mask_is_computed_while_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = list[str]()

    class Noted:
        grammar_from_regex = staticmethod(LLMatcher.grammar_from_regex)

        def __init__(self, *given: Any, **options: Any) -> None:
            self.real = LLMatcher(*given, **options)

        def __getattr__(self, name: str) -> Any:
            if name == "compute_bitmask":
                threads.append(threading.current_thread().name)
            return getattr(self.real, name)

        def deep_copy(self) -> Noted:
            copy = Noted.__new__(Noted)
            copy.real = self.real.deep_copy()
            return copy

    monkeypatch.setattr(guidance, "LLMatcher", Noted)
    assert compiler().compiled(regex("a+")) is not None
    assert len(threads) == 1 and threads[0].startswith("jengine-grammar")


def test_a_slow_grammar_is_refused_and_others_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    release, real = threading.Event(), guidance.llguidance_grammar

    def slow(spec: Any) -> str:
        if spec.text == "slow":
            assert release.wait(60)
        return real(spec)

    monkeypatch.setattr(guidance, "llguidance_grammar", slow)
    monkeypatch.setattr(compiling, "DEADLINE", 0.2)
    one = GrammarCompiler(threads=2)
    job = one.begin(regex("slow"))
    assert one.compiled(regex("fast")) is None, "the other thread is free"
    assert not job.wait(0.0) or job.is_late
    with pytest.raises(RequestError, match=r"longer than 0\.2 s to compile"):
        one.compiled(regex("slow"))
    release.set()


def test_a_failing_tokenizer_is_the_requests_error() -> None:
    def broken() -> Any:
        raise UnsupportedFeature("no bytes")

    with pytest.raises(JengineError, match="no bytes"):
        GrammarCompiler(broken).compiled(regex("a"))


def test_messages_are_short_and_name_keywords() -> None:
    assert explained('Unimplemented keys: ["a", "b"]').startswith("the keyword a, b of JSON")
    assert len(explained("x " * 1000)) == compiling.LONGEST_MESSAGE


def test_nesting_counts_brackets_and_skips_escaped_ones() -> None:
    assert nesting("a(b[c]{d})") == 2
    assert nesting(r"\(\(\(") == 0
    assert nesting("))((") == 2


def test_tokenizers_whose_bytes_are_not_known_are_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="needs a tokenizer"):
        check_tokenizer(None)
    made = llguidance_tokenizer(data_of(letters()), 110, ())
    assert made.vocab_size == 110 and made.eos_tokens == [2]
    assert made.decode_bytes([3]) == b"!"


def test_grammars_are_over_a_tokenizer_that_neither_cuts_nor_fills_up() -> None:
    cutting = wrap_tokenizer(PreTrainedTokenizerFast(tokenizer_object=letters().backend))
    assert cutting.backend is not None
    cutting.backend.enable_truncation(2)
    cutting.backend.enable_padding(length=9)
    plain = Backend.from_str(data_of(cutting).json)
    assert len(cutting.backend.encode("abcd").ids) == 9
    assert plain.encode("abcd").ids == letters().encode("abcd", False)
    assert cutting.backend.truncation and cutting.backend.padding, "the original is as it was"


EXPONENTIAL = [
    "(a|b)*a(a|b){60}",
    "((a{0,300}){0,300}){0,300}",
    "(.*a){25}",
    "(?:(?:(?:a?){50}){50}){50}b",
]


def test_exponential_regexes_and_huge_schemas_end_within_seconds() -> None:
    """Each is refused, ends its answer with an error, or is followed without any delay."""
    one = compiler()
    began = time.process_time()  # of all threads; others may use the machine meanwhile
    huge = StructuredOutputsParams(json=json.dumps({"description": "x" * (5 << 20)}))
    with pytest.raises(RequestError, match="the most is 1048576"):
        one.compiled(huge.spec())
    for text in EXPONENTIAL:
        followed = matcher(regex(text))
        mask = np.empty(WORDS, np.int32)
        for _ in range(40):
            followed.fill(mask)
            if followed.refusal or not followed.advance(ids("a")):
                break
    assert one.compiled(regex("[a-c]{4}")) is not None, "others go on"
    assert time.process_time() - began < 20
