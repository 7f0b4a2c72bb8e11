"""The stages of a Ray Data processor that need no device: chat template, tokenizer, detokenizer.

In: rows. Out: the same rows with `prompt`, `tokenized_prompt` or `generated_text`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
from ray.llm._internal.batch.stages.base import StatefulStage, StatefulStageUDF

from jengine.text.chat_template import render_chat
from jengine.text.tokenizer import load_tokenizer
from jengine.weights.resolve import resolve_model

Row = dict[str, Any]


class TextStep(StatefulStageUDF):
    """Adds one column to rows, each by itself, with the model's tokenizer."""

    def __init__(self, data_column: str, expected_input_keys: list[str], model: str) -> None:
        super().__init__(data_column, expected_input_keys)
        self.tokenizer = load_tokenizer(resolve_model(model))

    def added(self, row: Row) -> Row:
        raise NotImplementedError

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:
        """Ray's interface of stages."""
        index = self.IDX_IN_BATCH_COLUMN
        for row in rows:
            yield {index: row[index], **self.added(row)}


class ChatTemplateStep(TextStep):
    def __init__(
        self,
        data_column: str,
        expected_input_keys: list[str],
        model: str,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data_column, expected_input_keys, model)
        self.chat_template = chat_template
        self.variables = chat_template_kwargs

    def added(self, row: Row) -> Row:
        """The prompt; a conversation whose last message is the assistant's is continued."""
        messages = plain(row["messages"])
        opens = messages[-1]["role"] != "assistant"
        return {
            "prompt": render_chat(
                self.tokenizer,
                messages,
                chat_template=self.chat_template,
                add_generation_prompt=opens,
                continue_final_message=not opens,
                chat_template_kwargs=self.variables,
            )
        }


class TokenizeStep(TextStep):
    def added(self, row: Row) -> Row:
        """The prompt's tokens. Of a conversation the template has written the special ones."""
        return {"tokenized_prompt": self.tokenizer.encode(row["prompt"], "messages" not in row)}


class DetokenizeStep(TextStep):
    def added(self, row: Row) -> Row:
        return {"generated_text": self.tokenizer.decode(plain(row["generated_tokens"]))}


class ChatTemplateStage(StatefulStage):
    fn: type[StatefulStageUDF] = ChatTemplateStep

    def get_required_input_keys(self) -> dict[str, str]:
        """Columns that it reads."""
        return {"messages": "A list of messages in OpenAI's chat format."}


class TokenizeStage(StatefulStage):
    fn: type[StatefulStageUDF] = TokenizeStep

    def get_required_input_keys(self) -> dict[str, str]:
        """Columns that it reads."""
        return {"prompt": "The text of the prompt."}


class DetokenizeStage(StatefulStage):
    fn: type[StatefulStageUDF] = DetokenizeStep

    def get_required_input_keys(self) -> dict[str, str]:
        """Columns that it reads."""
        return {"generated_tokens": "Tokens of the answer."}


def plain(value: Any) -> Any:
    """Lists for the arrays that Ray Data makes of them."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value
