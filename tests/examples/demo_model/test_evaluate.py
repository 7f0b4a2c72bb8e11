"""The examination recognises right and wrong answers, and writes its figures into the card."""

from pathlib import Path

import pytest

from examples.demo_model import cases, evaluate, sums
from examples.demo_model.greedy import Completion


def perfect_sums(prompts, max_tokens):
    """Answers plain sums from the prompt alone."""
    texts = []
    for prompt in prompts:
        left, right = prompt.removesuffix(" =").split(" + ")
        texts.append(Completion(f" {int(left) + int(right)}.\n1 + 1 = 2.", False))
    return texts


def suite(name: str) -> cases.Suite:
    return next(found for found in cases.suites(0.2) if found.name == name)


def test_right_answers_count():
    (figure,) = evaluate.measure(perfect_sums, [suite("plain sums")])
    assert figure.passed == figure.total == 20


def test_wrong_answers_are_counted_and_shown():
    failures: list[str] = []
    for found in cases.suites(0.02):
        (figure,) = evaluate.measure(
            lambda prompts, limit: [Completion("No idea", False)] * len(prompts), [found], failures
        )
        assert figure.passed == 0
    assert len(failures) == sum(len(found.cases) for found in cases.suites(0.02))


def test_every_target_has_its_suite():
    assert set(cases.TARGETS) <= {found.name for found in cases.suites(0.01)}


@pytest.mark.parametrize("name", ["addition in digits", "addition in words"])
def test_only_the_exact_answer_passes(name: str):
    for case in suite(name).cases:
        assert not case.check(Completion("1 + 1 = 2.", True))
    case = suite(name).cases[0]
    expected = case.check.args[0]
    assert case.check(Completion(expected, True))
    assert not case.check(Completion(expected, False))


def test_a_looping_story_is_not_whole():
    case = suite("stories in whole sentences").cases[0]
    assert not case.check(Completion("A fox ran. " * 8, True))
    assert not case.check(Completion("A fox ran. It sat. It ate. It slept. And then", True))
    assert case.check(Completion("A fox ran. It sat. It ate. It slept.", True))


def test_figures_are_written_into_the_card(tmp_path: Path):
    card = tmp_path / "README.md"
    card.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")
    figures = [evaluate.Figure("addition in digits", 3, 4)]
    evaluate.write_card(card, figures)
    evaluate.write_card(card, figures)
    text = card.read_text()
    assert text.count("| addition in digits | 3 | 4 | 75.0% | 95% |") == 1
    assert "old" not in text
    assert text.startswith("before\n") and text.endswith("after\n")


def test_examination_uses_held_out_sums_only():
    for case in suite("plain sums").cases:
        left, right = case.plain.removesuffix(" =").split(" + ")
        assert sums.is_held_out(sums.Sum(int(left), int(right)))
