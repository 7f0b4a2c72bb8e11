"""Limits of untrusted JSON, checked before it is decoded.

In: JSON as bytes. Out: a complaint, or None. Decoding holds the GIL: within these limits for some
tenths of a second.
"""

from __future__ import annotations

# Limits on the number of lists and objects, and of commas.
MOST_NESTED, MOST_ITEMS = 2**17, 2**22
# Slow numbers: msgspec takes up to 60 us, a thousand times the usual, for an exponent beyond 280 or
# as many zeros.
MOST_EXTREME = 2**12
ZEROS = b"0" * 256
# Shorter bodies are fast to decode whatever they hold.
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
    """Upper bound of the number of lists and objects."""
    return body.count(b"[") + body.count(b"{")


def extremes(body: bytes) -> int:
    """Upper bound of the number of slow numbers: letters e outside of true and false, and runs of
    zeros."""
    letters = body.count(b"e") + body.count(b"E") - body.count(b"true") - body.count(b"false")
    return letters + body.count(ZEROS)


def outside_of_texts(body: bytes) -> bytes:
    """Remove string literals from JSON. Returns the body unchanged if it has more quotes than
    MOST_ITEMS."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > MOST_ITEMS:
        return body
    return b"".join(plain.split(b'"')[::2])
