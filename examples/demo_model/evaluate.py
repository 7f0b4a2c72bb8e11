"""Measures the demo model on its examination and keeps the model card's figures true.

In: a model folder. Out: a table, a last line of JSON, with --write-card the card's figures.
Must not know: how text is generated; `measure` takes any function that completes prompts.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.demo_model import cases, corpus
from examples.demo_model import tokenizer as demo_tokenizer
from examples.demo_model.greedy import Completion, Generate, greedy_generator
from jengine.api.llm import LLM
from jengine.demo import model_path
from jengine.sampling_params import SamplingParams
from jengine.weights.safetensors_io import load_model

__all__ = ["Figure", "measure", "table", "write_card"]

CARD_PART = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)


class Figure(NamedTuple):
    """How many cases of a suite were answered well."""

    name: str
    passed: int
    total: int

    @property
    def share(self) -> float:
        return self.passed / self.total


def measure(
    generate: Generate, suites: Sequence[cases.Suite], failures: list[str] | None = None
) -> list[Figure]:
    """Answer every case; texts that fail are added to `failures`."""
    figures = []
    for suite in suites:
        prompts = [prompt(case) for case in suite.cases]
        completions = generate(prompts, suite.max_tokens)
        passed = 0
        for case, asked, completion in zip(suite.cases, prompts, completions, strict=True):
            good = case.check(completion)
            passed += good
            if not good and failures is not None:
                failures.append(f"[{suite.name}] {asked}{completion.text}")
        figures.append(Figure(suite.name, passed, len(prompts)))
    return figures


def prompt(case: cases.Case) -> str:
    """A case as the model reads it."""
    if not case.turns:
        return case.plain
    return corpus.chat_prompt(case.turns)


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table."""
    lines = ["| prompts | right | of | share | target |", "|---|---|---|---|---|"]
    for figure in figures:
        target = cases.TARGETS.get(figure.name)
        wanted = f"{target:.0%}" if target else ""
        lines.append(
            f"| {figure.name} | {figure.passed} | {figure.total} | {figure.share:.1%} | {wanted} |"
        )
    return "\n".join(lines)


def write_card(card: Path, figures: Sequence[Figure]) -> None:
    """Put the table between the card's two markers."""
    text = card.read_text()
    if not CARD_PART.search(text):
        raise SystemExit(f"{card} has no '<!-- figures -->' part to write the figures into.")
    card.write_text(CARD_PART.sub(lambda found: f"{found[1]}{table(figures)}\n{found[2]}", text))


def main() -> None:
    """Measure a model folder on the examination."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_model.evaluate", description=main.__doc__
    )
    parser.add_argument("model", type=Path, nargs="?", default=model_path())
    parser.add_argument("--share", type=float, default=1.0, help="part of the cases, 0 to 1")
    parser.add_argument("--show-failures", type=int, default=0, metavar="N")
    parser.add_argument("--plain", action="store_true", help="without the engine")
    parser.add_argument("--write-card", action="store_true", help="update README.md of the folder")
    given = parser.parse_args()

    failures: list[str] = []
    generate = plain_generator(given.model) if given.plain else engine_generator(given.model)
    figures = measure(generate, cases.suites(given.share), failures)
    for failure in failures[: given.show_failures]:
        print(failure, end="\n\n")
    print(table(figures))
    if given.write_card:
        write_card(given.model / "README.md", figures)
    print(json.dumps({figure.name: round(figure.share, 4) for figure in figures}))


def engine_generator(folder: Path) -> Generate:
    """Greedy completions by the engine."""
    engine = LLM(folder)

    def generate(prompts: Sequence[str], max_tokens: int) -> list[Completion]:
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        answers = [output.outputs[0] for output in engine.generate(list(prompts), sampling)]
        return [Completion(answer.text, answer.finish_reason == "stop") for answer in answers]

    return generate


def plain_generator(folder: Path) -> Generate:
    """Greedy completions by the plain loop, the engine's yardstick."""
    stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return greedy_generator(load_model(folder), demo_tokenizer.load(folder), stops)


if __name__ == "__main__":
    main()
