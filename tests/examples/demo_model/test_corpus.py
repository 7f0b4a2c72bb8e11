"""The corpus is reproducible, true and keeps its held-out part out of training."""

import itertools
import json
import random
import re
import zlib

import pytest

from examples.demo_model import corpus, records, stories, sums

SUM = re.compile(r"(\d+) ([+-]) (\d+) = (\d+)\.")


CRC_OF_FIRST_DOCUMENTS = 739636657


def some(count: int, held_out: bool = False) -> list[corpus.Document]:
    return list(itertools.islice(corpus.documents(7, held_out), count))


def text_of(source: corpus.Document) -> str:
    return "".join(segment.text for segment in corpus.render(source))


def test_same_seed_same_text_other_seed_other_text():
    assert some(50) == some(50)
    assert some(50) != list(itertools.islice(corpus.documents(8), 50))


def test_every_sum_in_digits_is_right_and_of_its_split():
    for held_out in (False, True):
        found = 0
        for source in some(500, held_out):
            for left, sign, right, result in SUM.findall(text_of(source)):
                left, right, result = int(left), int(right), int(result)
                assert result == (left + right if sign == "+" else left - right)
                if not held_out:
                    assert not sums.is_held_out(sums.Sum(left, right, sign))
                found += 1
        assert found > 100


def test_every_sum_in_words_is_right_and_of_its_split():
    numbers = {sums.number_in_words(number): number for number in range(199)}
    assert len(numbers) == 199
    pattern = re.compile(r"([a-z-]+) plus ([a-z-]+) is ([a-z -]+)\.")
    found = 0
    for source in some(400):
        for left, right, result in pattern.findall(text_of(source).lower()):
            assert numbers[left] + numbers[right] == numbers[result]
            assert not sums.is_held_out(sums.Sum(numbers[left], numbers[right]))
            found += 1
    assert found > 100


def test_the_refresher_shows_every_sum_of_one_digit_numbers():
    rng = random.Random(0)
    drawn = [sums.draw_small(rng) for _ in range(6000)]
    assert all(min(problem.left, problem.right) < 10 for problem in drawn)
    assert all(problem.result >= 0 and not sums.is_held_out(problem) for problem in drawn)
    small = {problem for problem in drawn if max(problem.left, problem.right) < 10}
    assert len(small) == 100 + 55
    documents = itertools.islice(corpus.documents(1, mix=corpus.REFRESHER), 200)
    asked = [one for source in documents for one in SUM.findall(text_of(source))]
    assert sum(len(left) == len(right) == 1 for left, _, right, _ in asked) > len(asked) / 8


def test_the_recipe_of_the_first_weights_is_unchanged():
    """Adding a kind of document must not change what the earlier mixes draw."""
    first = itertools.islice(corpus.documents("0/0", mix=corpus.MIXES[0][1]), 200)
    text = "".join(map(text_of, first))
    assert zlib.crc32(text.encode()) == CRC_OF_FIRST_DOCUMENTS


def test_held_out_pairs_are_a_tenth_and_share_the_fate_of_their_mirror_image():
    pairs = [(left, right) for left in range(10, 100) for right in range(10, 100)]
    held = {pair for pair in pairs if sums.is_held_out(sums.Sum(*pair))}
    assert 0.07 < len(held) / len(pairs) < 0.13
    assert all((right, left) in held for left, right in held)
    assert all(sums.is_held_out(sums.Sum(left + right, right, "-")) for left, right in held)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (68, "sixty-eight"),
        (100, "one hundred"),
        (112, "one hundred and twelve"),
        (198, "one hundred and ninety-eight"),
    ],
)
def test_numbers_in_words(number: int, words: str):
    assert sums.number_in_words(number) == words


def test_answers_to_records_are_json_of_their_split():
    rng = random.Random(0)
    for held_out in (False, True):
        for _ in range(200):
            record = records.draw(rng, held_out)
            assert records.is_held_out(record) == held_out
            assert json.loads(records.answer(record)) == record.value
            assert record.phrase in records.request(rng, record)


def test_stories_are_whole_and_held_out_heroes_are_absent_from_training():
    rng = random.Random(0)
    for _ in range(300):
        story = stories.draw(rng)
        assert "{" not in story.text
        assert "  " not in story.text
        assert story.text.endswith((".", "!", '"'))
        words = set(re.findall(r"\w+", story.text.lower()))
        assert not words & set(stories.HELD_OUT_HEROES)
        assert stories.draw(rng, held_out=True).hero in stories.HELD_OUT_HEROES


def test_tales_begin_like_tales():
    rng = random.Random(0)
    for _ in range(20):
        assert stories.draw(rng, starts_as_tale=True).text.startswith("Once upon a time")


def test_only_the_assistant_and_plain_text_are_learned():
    for source in some(100):
        for turn in source.turns:
            assert turn.role in ("system", "user", "assistant")
        learned = "".join(part.text for part in corpus.render(source) if part.learned)
        for turn in source.turns:
            if turn.role == "assistant":
                assert turn.content + corpus.TURN_END in learned


def test_every_kind_of_document_is_drawn():
    assert {source.kind for source in some(300)} == set(corpus.KINDS)
