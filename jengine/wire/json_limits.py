"""Limits of untrusted JSON, checked before it is decoded.

In: JSON as bytes. Out: a complaint, or None. Decoding holds the interpreter: within these limits it
takes some tenths of a second, in which no other thread of the process runs.
"""

from __future__ import annotations

# Lists and objects; commas.
MOST_NESTED, MOST_ITEMS = 2**17, 2**22
# Numbers with an exponent, and runs of zeros: msgspec takes up to 60 us for one whose exponent is
# beyond 280 or that hides as much in its zeros, a thousand times what another takes.
MOST_EXTREME = 2**12
ZEROS = b"0" * 256
# Shorter texts hold nothing that takes long.
HARMLESS_BYTES = 2**14


def complaint_about(body: bytes) -> str | None:
    """Describe which limit a JSON text exceeds; None if it may be decoded."""
    if len(body) <= HARMLESS_BYTES:
        return None
    if brackets(body) > MOST_NESTED and brackets(outside_of_texts(body)) > MOST_NESTED:
        return f"more than {MOST_NESTED} lists and objects"
    if body.count(b",") > MOST_ITEMS:
        return f"more than {MOST_ITEMS} commas"
    if extremes(body) > MOST_EXTREME and extremes(outside_of_texts(body)) > MOST_EXTREME:
        return f"more than {MOST_EXTREME} numbers with exponents or with {len(ZEROS)} zeros"
    return None


def brackets(body: bytes) -> int:
    """Upper bound of the lists and objects in a JSON text: its opening brackets."""
    return body.count(b"[") + body.count(b"{")


def extremes(body: bytes) -> int:
    """Upper bound of the numbers in a JSON text that take long: its letters e but for those of true
    and false, and its runs of zeros."""
    letters = body.count(b"e") + body.count(b"E") - body.count(b"true") - body.count(b"false")
    return letters + body.count(ZEROS)


def outside_of_texts(body: bytes) -> bytes:
    """Remove string literals from JSON. Returns the body unchanged if it has more of them than
    allowed values."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > MOST_ITEMS:
        return body
    return b"".join(plain.split(b'"')[::2])
