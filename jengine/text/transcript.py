"""Text and tokens of one completion, from token deltas.

In: sampling options, prompt ids, then every delta. Out: text, token ids, finish reason. Must not
know: the engine, the scheduler, logprobs, how outputs are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from jengine.errors import RequestError
from jengine.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from jengine.text.tokenizer import Tokenizer


class TranscriptDelta(NamedTuple):
    """Text and tokens that became visible since the last call."""

    text: str
    token_ids: list[int]


@final
class Transcript:
    """Accumulates deltas; applies detokenization and stop strings.

    - `push(token_ids, finish_reason=None, stop_reason=None) -> bool` adds a delta ("stop": its
      last token is an EOS or stop token). True: a stop string ended it, so abort the request in the
      engine. Deltas after the end are dropped.
    - `finish(finish_reason, stop_reason=None)` ends it from outside (abort, error).
    - `visible_text()` is the text that may be shown, `take_delta()` the new text and token ids
      since the last call. Both are complete once `finished`.
    - `token_ids` includes the EOS or stop token, but nothing after the token that completed a stop
      string: cut logprobs to its length.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt_token_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        detokenize: bool = True,
        min_tokens: int = 0,
    ) -> None:
        _check_options(tokenizer, stop, detokenize)
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._include_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._stop_checker = StopChecker(stop, include_stop_str_in_output)
        self._pieces: list[str] = []  # visible text
        self._taken_pieces = 0
        self._taken_tokens = 0
        self._detokenizer: Detokenizer | None = None
        if detokenize and tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer,
                prompt_token_ids,
                skip_special_tokens=skip_special_tokens,
                spaces_between_special_tokens=spaces_between_special_tokens,
            )

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def push(
        self,
        token_ids: Sequence[int],
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> bool:
        """Add a delta. Returns True if the caller must abort the request in the engine."""
        if self.finished:
            return False
        silent_last = finish_reason == "stop" and not self._include_stop
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            if not (silent_last and index == last):
                self._append_text(self._new_text(token_id))
            if self.finished:
                return finish_reason is None
        if finish_reason is not None:
            self.finish(finish_reason, stop_reason)
        return False

    def finish(self, finish_reason: str, stop_reason: str | int | None = None) -> None:
        """End the completion and release held-back text. Idempotent."""
        if self.finished:
            return
        if self._detokenizer is not None:
            self._append_text(self._detokenizer.finish())
        if not self.finished:  # the last bytes can still complete a stop string
            self._pieces.append(self._stop_checker.finish())
            self.finish_reason, self.stop_reason = finish_reason, stop_reason

    def visible_text(self) -> str:
        return "".join(self._pieces)

    def take_delta(self) -> TranscriptDelta:
        text = "".join(self._pieces[self._taken_pieces :])
        token_ids = self.token_ids[self._taken_tokens :]
        self._taken_pieces, self._taken_tokens = len(self._pieces), len(self.token_ids)
        return TranscriptDelta(text, token_ids)

    def _new_text(self, token_id: int) -> str:
        return "" if self._detokenizer is None else self._detokenizer.push([token_id])

    def _append_text(self, text: str) -> None:
        if not text:
            return
        search = len(self.token_ids) > self._min_tokens
        shown, stop = self._stop_checker.push(text, search=search)
        self._pieces.append(shown)
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop


def _check_options(tokenizer: Tokenizer | None, stop: Sequence[str], detokenize: bool) -> None:
    if stop and not detokenize:
        raise RequestError(
            "stop needs text to search, but detokenize is False. Set detokenize=True, or use "
            "stop_token_ids."
        )
    if detokenize and tokenizer is None:
        raise RequestError(
            "detokenize is True, but the engine has no tokenizer. Set detokenize=False, or give "
            "the engine a tokenizer."
        )


class Checked(NamedTuple):
    """Released text, and the stop string that ended the output, if any."""

    text: str
    stop: str | None


@final
class StopChecker:
    """Finds the stop string that completes first; among those at one place, the first listed.

    The output is cut before the match, or after it if the string is included. `push(text,
    search=True)` finds matches completing in `text`. The last `max(len(stop)) - 1` characters are
    held back (none if the string is included) until `finish()`.
    """

    def __init__(self, stop: Sequence[str], include_stop_str_in_output: bool) -> None:
        if "" in stop:
            raise RequestError("stop has an empty string, which would match at once. Remove it.")
        self._stop = tuple(stop)
        self._include = include_stop_str_in_output
        self._kept_chars = max(map(len, self._stop), default=1) - 1
        self._recent = ""  # the last characters: all held back, or all shown if included

    def push(self, text: str, *, search: bool = True) -> Checked:
        """Add text. Do not push after a stop string."""
        recent, self._recent = self._recent, ""
        joined = recent + text
        shown = len(recent) if self._include else 0
        match = self._earliest(joined, len(recent)) if search else None
        if match is not None:
            end, stop = match
            cut = end if self._include else end - len(stop)
            return Checked(joined[shown:cut], stop)
        split = max(len(joined) - self._kept_chars, 0)
        self._recent = joined[split:]
        return Checked(joined[shown:] if self._include else joined[:split], None)

    def finish(self) -> str:
        """The held-back text; no stop string was found."""
        held, self._recent = self._recent, ""
        return "" if self._include else held

    def _earliest(self, text: str, searched: int) -> tuple[int, str] | None:
        """(end, stop string) of the earliest match that completes after `searched` characters."""
        ends = [
            (start + len(stop), stop)
            for stop in self._stop
            if (start := text.find(stop, max(searched - len(stop) + 1, 0))) >= 0
        ]
        return min(ends, key=lambda match: match[0], default=None)
