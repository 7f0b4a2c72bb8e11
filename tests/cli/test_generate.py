"""`jengine generate`: where prompts come from and how answers are shown."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.logprobs import LogprobTables, NoTexts, StepLogprobs
from jengine.outputs import RequestOutput
from tests.cli.fake_llm import FakeLLM, run


def test_one_prompt_is_streamed_as_bare_text() -> None:
    llm = FakeLLM()
    result = run(llm, "generate", "demo", "--max-tokens", "8", "Hi")
    assert (result.status, result.out, result.err) == (0, "Hello there\n", "")
    [(prompt, params)] = llm.asked
    assert (prompt, params.max_tokens, params.temperature) == ("Hi", 8, 0.7)
    assert llm.opened[0][1]["max_num_seqs"] == 1
    assert llm.closed_streams == 1


def test_several_prompts_are_shown_with_their_answers() -> None:
    llm = FakeLLM(scripts=[["one"], ["two"]])
    result = run(llm, "generate", "demo", "a", "--temperature", "0.1", "b")
    assert result.out == "Prompt: a\nAnswer: one\n\nPrompt: b\nAnswer: two\n\n"
    assert llm.asked[0][1].max_tokens == 256
    assert "max_num_seqs" not in llm.opened[0][1]


def test_several_answers_to_one_prompt() -> None:
    llm = FakeLLM(scripts=[["one"]])
    assert run(llm, "generate", "demo", "a", "--n", "2").out == "one\none\n"
    assert llm.opened[0][1]["max_num_seqs"] == 2


def test_prompts_from_stdin_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\nsecond\n")
    llm = FakeLLM()
    run(llm, "generate", "demo", "-", "--file", str(file), stdin="piped\ntext")
    assert llm.asked[0][0] == ["piped\ntext", "first", "second"]


def test_json_lines_hold_the_fields_of_the_output() -> None:
    result = run(FakeLLM(scripts=[["é"], ["two"]]), "generate", "demo", "a", "b", "--json")
    first, second = map(json.loads, result.out.splitlines())
    assert (first["prompt"], first["outputs"][0]["text"]) == ("a", "é")
    assert (second["request_id"], second["outputs"][0]["token_ids"]) == ("1", [7])


def test_json_for_one_prompt_is_one_line() -> None:
    result = run(FakeLLM(), "generate", "demo", "a", "--json")
    assert json.loads(result.out)["finished"] is True


class ScoredLLM(FakeLLM):
    """Answers with a log-probability table, as engines make them."""

    def generate(self, *given: Any, **more: Any) -> list[RequestOutput]:
        outputs = super().generate(*given, **more)
        values, ids = np.float32([[-0.5, -1.5, -np.inf]]), np.int32([[7, 9, 8]])
        scores = StepLogprobs(values, ids, np.int32([1]))
        outputs[0].outputs[0].logprobs = LogprobTables(scores, [7], 0, NoTexts())
        return outputs


def test_json_holds_log_probabilities() -> None:
    result = run(ScoredLLM(), "generate", "demo", "a", "--logprobs", "1", "--json")
    assert result.status == 0
    [table] = json.loads(result.out)["outputs"][0]["logprobs"]
    assert table["7"] == {"logprob": -0.5, "rank": 1, "decoded_token": None}
    assert table["9"]["logprob"] == -1.5
    assert table["8"]["logprob"] is None


def test_no_prompt_and_unreadable_files_are_refused_before_the_start(tmp_path: Path) -> None:
    llm = FakeLLM()
    assert "there is no prompt" in run(llm, "generate", "demo").err
    missing = str(tmp_path / "missing.txt")
    assert "cannot be read" in run(llm, "generate", "demo", "--file", missing).err
    result = run(llm, "generate", "demo", "a", "--temperature", "-1")
    assert (result.status, result.err.count("\n")) == (1, 1)
    assert not llm.opened


def test_a_request_that_failed_gives_status_1() -> None:
    for words in (["a"], ["a", "b"], ["a", "--json"]):
        result = run(FakeLLM(error="numbers are not finite"), "generate", "demo", *words)
        assert result.status == 1
        assert "numbers are not finite" in result.err


def test_stdin_that_is_not_text_is_refused() -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8")
    for words in (["generate", "demo", "-"], ["chat", "demo"]):
        stdin.seek(0)
        terminal = Terminal(stdin, io.StringIO(), io.StringIO())
        assert main(words, terminal=terminal, open_llm=FakeLLM().open) == 1
        assert "stdin is not utf-8 text" in terminal.stderr.getvalue()  # type: ignore[attr-defined]
