"""Word lists that several of the demo model's tasks share.

In: a random generator. Out: names, known or made up.
Must not know: what the words are used for.
"""

import random

__all__ = [
    "ANIMALS",
    "BOYS",
    "CITIES",
    "COLORS",
    "GIRLS",
    "article",
    "listed",
    "made_up_word",
    "person",
]


def listed(words: str) -> tuple[str, ...]:
    """The words of a text, for lists that would otherwise fill pages."""
    return tuple(words.split())


GIRLS = listed(
    "Anna Bella Clara Daisy Ella Emma Fiona Grace Hazel Holly Ida Ivy Jane Julia Kate Lily Lucy "
    "Luna Maya Mia Mila Nina Nora Olive Pearl Poppy Rosa Ruby Sara Sofia Tess Tina Vera Willa "
    "Zoe Alice Amy Carla Eva Lena"
)
BOYS = listed(
    "Adam Alex Ben Bruno Carl Charlie Dan David Eric Felix Finn Fred George Hugo Jack James Joe "
    "John Leo Liam Lucas Mark Max Milo Nico Noah Oliver Oscar Otto Paul Peter Pip Rex Sam Simon "
    "Theo Tim Tom Toby Walter"
)
ANIMALS = listed(
    "badger bear beaver bird bunny cat chicken cow crab deer dog dolphin donkey duck eagle "
    "elephant fish fox frog goat goose hamster hedgehog hen horse kitten lamb lion lizard mole "
    "monkey mouse otter owl panda parrot penguin pig pony puppy rabbit raccoon seal sheep snail "
    "spider squirrel swan tiger turtle whale wolf zebra"
)
COLORS = listed("red blue green yellow orange purple pink brown black white gray golden silver")
CITIES = listed(
    "Paris London Rome Berlin Madrid Oslo Vienna Lisbon Dublin Prague Athens Cairo Tokyo Delhi "
    "Sydney Boston Chicago Dallas Denver Seattle Toronto Lima Seoul Milan Hamburg Geneva"
)

ONSETS = listed("b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh st t tr v w z")
VOWELS = listed("a e i o u ai ee oo")
CODAS = ["", "", "", "l", "m", "n", "r", "s", "t", "x", "nd", "ck"]


def article(phrase: str) -> str:
    """Put "a" or "an" before a phrase."""
    return ("an " if phrase[0].lower() in "aeiou" else "a ") + phrase


def made_up_word(rng: random.Random) -> str:
    """A word that is in no list, so that copying is learned rather than a list of names."""
    syllables = rng.randint(1, 3)
    parts = (rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables))
    return "".join(parts)


def person(rng: random.Random) -> str:
    """A first name; some are made up."""
    if rng.random() < 0.15:
        return made_up_word(rng).capitalize()
    return rng.choice(rng.choice((GIRLS, BOYS)))
