"""Sums in digits and in words: one of the demo model's tasks.

In: a random generator and the wanted split. Out: a Sum, its question and its one right answer.
Must not know: chat markup, tokens, the other tasks.
"""

import random
import zlib
from typing import NamedTuple

from examples.demo_model import names

__all__ = [
    "Sum",
    "answer",
    "draw",
    "draw_small",
    "halves",
    "is_held_out",
    "number_in_words",
    "operation",
    "question",
]

UNITS = names.listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
)
TENS = names.listed("zero ten twenty thirty forty fifty sixty seventy eighty ninety")

HELD_OUT_ONE_IN = 10

ADDITION_IN_DIGITS = (
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "What is {a} plus {b}?",
    "{a} + {b}",
    "{a} + {b} =",
    "{a} + {b} = ?",
    "{a}+{b}",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "Can you add {a} and {b}?",
    "What is the sum of {a} and {b}?",
    "How much is {a} + {b}?",
    "Calculate {a} + {b}.",
)
ADDITION_IN_WORDS = (
    "What is {a} plus {b}?",
    "What is {a} plus {b}?",
    "{a} plus {b}",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "Can you add {a} and {b}?",
    "What is the sum of {a} and {b}?",
    "How much is {a} plus {b}?",
)
SUBTRACTION_IN_DIGITS = (
    "What is {a} - {b}?",
    "What is {a} minus {b}?",
    "{a} - {b}",
    "{a} - {b} =",
    "{a}-{b}",
    "How much is {a} - {b}?",
    "Calculate {a} - {b}.",
)
SUBTRACTION_IN_WORDS = (
    "What is {a} minus {b}?",
    "{a} minus {b}",
    "How much is {a} minus {b}?",
)


class Sum(NamedTuple):
    """An addition, or a subtraction whose result is not negative."""

    left: int
    right: int
    sign: str = "+"

    @property
    def result(self) -> int:
        return self.left + self.right if self.sign == "+" else self.left - self.right


def is_held_out(problem: Sum) -> bool:
    """Whether a sum is kept from training, in digits and in words alike.

    A pair and its mirror image share their fate, and so does the subtraction that undoes them.
    """
    left = problem.left if problem.sign == "+" else problem.result
    low, high = sorted((left, problem.right))
    return low >= 10 and zlib.crc32(f"{low}+{high}".encode()) % HELD_OUT_ONE_IN == 0


def draw(rng: random.Random, held_out: bool = False, sign: str | None = None) -> Sum:
    """Draw a sum of the wanted split; held-out sums always have two-digit numbers."""
    while True:
        chosen = sign or ("+" if rng.random() < 0.85 else "-")
        low = 10 if held_out or rng.random() < 0.85 else 0
        left, right = rng.randint(low, 99), rng.randint(low, 99)
        if chosen == "-":
            left, right = max(left, right), min(left, right)
        problem = Sum(left, right, chosen)
        if is_held_out(problem) == held_out:
            return problem


def draw_small(rng: random.Random) -> Sum:
    """Draw a sum with one-digit numbers: both of them, or one beside a number below 100.

    All of these are in training. `draw` alone gives two one-digit numbers once in 700 draws.
    """
    sign = "+" if rng.random() < 0.7 else "-"
    left, right = rng.randint(0, 9), rng.randint(0, 9 if rng.random() < 0.6 else 99)
    if rng.random() < 0.5:
        left, right = right, left
    if sign == "-":
        left, right = max(left, right), min(left, right)
    return Sum(left, right, sign)


def number_in_words(number: int) -> str:
    """Spell a number from 0 to 199."""
    if number >= 100:
        rest = number - 100
        return "one hundred" + (f" and {number_in_words(rest)}" if rest else "")
    if number < 20:
        return UNITS[number]
    tens, units = divmod(number, 10)
    return TENS[tens] + (f"-{UNITS[units]}" if units else "")


def question(rng: random.Random, problem: Sum, in_words: bool) -> str:
    """Ask for a sum in one of many ways."""
    if in_words:
        templates = ADDITION_IN_WORDS if problem.sign == "+" else SUBTRACTION_IN_WORDS
        left, right = number_in_words(problem.left), number_in_words(problem.right)
    else:
        templates = ADDITION_IN_DIGITS if problem.sign == "+" else SUBTRACTION_IN_DIGITS
        left, right = str(problem.left), str(problem.right)
    text = rng.choice(templates).format(a=left, b=right)
    return text[0].upper() + text[1:]


def operation(problem: Sum, in_words: bool) -> str:
    """The bare sum: "23 + 45", or "twenty-three plus forty-five"."""
    if not in_words:
        return f"{problem.left} {problem.sign} {problem.right}"
    verb = "plus" if problem.sign == "+" else "minus"
    return f"{number_in_words(problem.left)} {verb} {number_in_words(problem.right)}"


def halves(problem: Sum, in_words: bool) -> tuple[str, str]:
    """The answer, split where its result begins."""
    asked = operation(problem, in_words)
    if not in_words:
        return f"{asked} =", f" {problem.result}."
    return f"{asked[0].upper()}{asked[1:]} is", f" {number_in_words(problem.result)}."


def answer(problem: Sum, in_words: bool) -> str:
    """The one right answer, which repeats the sum."""
    return "".join(halves(problem, in_words))
