"""Timestamp tokens to segments, and segments to subtitles.

A timestamp token precedes and follows each segment, in steps of 20 ms. Must not know requests.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from jengine.server.audio.types import Segment

STEP = 0.02  # seconds


def segments_of(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    first_time: int,
    start: float,
    decode: Callable[[list[int]], str],
    temperature: float,
) -> list[Segment]:
    """Split one part's tokens into segments at timestamp tokens.

    Args:
        first_time: id of the timestamp token for 0 s; larger ids are later times.
        start: offset of the part in the file, in seconds, added to all times.
    """
    found, inside = list[Segment](), list[tuple[int, float]]()
    begin = last = 0
    for token, logprob in zip(tokens, logprobs, strict=True):
        if token < first_time:
            inside.append((token, logprob))
            continue
        last = token - first_time
        if inside:
            found.append(_segment(inside, start, (begin, last), decode, temperature))
            inside = []
        begin = last
    if inside:  # no closing timestamp
        found.append(_segment(inside, start, (begin, begin), decode, temperature))
    return found


def _segment(
    inside: list[tuple[int, float]],
    start: float,
    times: tuple[int, int],
    decode: Callable[[list[int]], str],
    temperature: float,
) -> Segment:
    ids = [token for token, _ in inside]
    text = decode(ids)
    data = text.encode()
    return Segment(
        id=0,
        seek=int(start),
        start=round(start + STEP * times[0], 3),
        end=round(start + STEP * times[1], 3),
        temperature=temperature,
        text=text,
        tokens=ids,
        avg_logprob=sum(logprob for _, logprob in inside) / len(inside),
        compression_ratio=len(data) / len(zlib.compress(data)),
    )


def subtitles(segments: Sequence[Segment], kind: str) -> str:
    """Format segments as SubRip (`srt`) or WebVTT (`vtt`)."""
    lines = ["WEBVTT", ""] if kind == "vtt" else []
    mark = "." if kind == "vtt" else ","
    for number, one in enumerate(segments, 1):
        if kind == "srt":
            lines.append(str(number))
        lines += [f"{clock(one.start, mark)} --> {clock(one.end, mark)}", one.text.strip(), ""]
    return "\n".join(lines) + ("\n" if segments else "")


def clock(seconds: float, mark: str) -> str:
    """Format seconds as HH:MM:SS and milliseconds after `mark`."""
    thousandths = round(seconds * 1000)
    whole, rest = divmod(thousandths, 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{mark}{rest:03}"
