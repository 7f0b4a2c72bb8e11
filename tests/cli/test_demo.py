"""`jengine demo` with a scripted model."""

from __future__ import annotations

from jengine.assembly.settings.args import EngineArgs
from jengine.cli.demo import QUESTIONS
from tests.cli.fake_llm import FakeLLM, run


def test_it_asks_three_things_and_says_what_to_type_next() -> None:
    llm = FakeLLM(scripts=[["A story."], ["75"], ["{}"]])
    result = run(llm, "demo")
    assert result.status == 0
    for question, answer in zip(QUESTIONS, ("A story.", "75", "{}"), strict=True):
        assert f"> {question}\n{answer}\n" in result.out
    assert "Started in" in result.out and "tokens/s" in result.out
    for hint in ("jengine chat demo", "jengine generate demo", 'LLM("demo")', "jengine doctor"):
        assert hint in result.out


def test_its_engine_is_small() -> None:
    llm = FakeLLM()
    run(llm, "demo")
    [(model, settings)] = llm.opened
    args = EngineArgs.checked("LLM", model=model, **settings)
    assert (args.model, args.max_num_seqs) == ("demo", 4)
    assert args.compilation_config is not None
    assert all(len(ladder) == 1 for ladder in args.compilation_config.values())


def test_the_python_lines_are_python() -> None:
    out = run(FakeLLM(), "demo").out
    lines = [line.strip() for line in out.split("or in Python:\n")[1].splitlines()]
    compile("\n".join(lines), "demo", "exec")
    assert len(lines) == 3


def test_control_c_leaves() -> None:
    assert run(FakeLLM(scripts=[[KeyboardInterrupt()]]), "demo").status == 130
