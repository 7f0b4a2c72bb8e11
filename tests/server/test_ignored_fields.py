"""Fields that no endpoint knows: answered as vLLM does, counted, and told once each."""

from __future__ import annotations

import pytest

from jengine.server.serving.ignored_fields import MOST_TOLD, REMOVED, IgnoredFields
from tests.server.serving import serving

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("name", sorted(REMOVED))
def test_fields_that_vllm_has_removed_are_ignored_as_there(
    caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with serving() as client, caplog.at_level("WARNING", "jengine.server"):
        for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
            for _ in range(2):
                response = client.post(path, json={**body, "max_tokens": 2, name: "[ab]"})
                assert response.status_code == 200
                assert response.headers["x-jengine-ignored-fields"] == name
    (told,) = [one.getMessage() for one in caplog.records if name in one.getMessage()]
    assert "NOT constrained" in told and "structured_outputs" in told


def test_unknown_fields_are_told_once_each_and_not_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = IgnoredFields()
    with caplog.at_level("WARNING", "jengine.server"):
        for number in [*range(MOST_TOLD * 2), *range(MOST_TOLD)]:
            fields.note([f"field\n{number}"])
    assert fields.count == MOST_TOLD * 3
    assert len(caplog.records) == MOST_TOLD
    assert not any("\n" in one.getMessage() for one in caplog.records)
