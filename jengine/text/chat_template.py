"""Renders chat messages to a prompt string with a chat template.

In: messages as in the OpenAI API, images extracted; options, variables. Out: a string to encode
with `add_special_tokens=False`, since templates write special tokens themselves. Templates are
untrusted programs: only transformers' sandbox renders them, and a server does so in a worker with a
deadline.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jengine.errors import RequestError
from jengine.text.chat_images import MARKS, with_text
from jengine.text.tokenizer import Tokenizer

Message = Mapping[str, Any]
logger = logging.getLogger(__name__)

# Arguments of apply_chat_template, and names that it defines for templates.
# fmt: off
_RESERVED = frozenset({
    "conversation", "conversations", "messages", "tools", "documents", "chat_template",
    "add_generation_prompt", "continue_final_message", "tokenize", "sanitize_control_tokens",
    "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "compiled_template", "raise_exception",
    "strftime_now", "namespace", "dict", "range", "cycler", "joiner", "lipsum", "self", "kwargs",
})
# fmt: on


MOST_TEMPLATE = 128 * 1024  # characters
# Form of message content for the template: detected, string, or parts.
CONTENT_FORMATS = ("auto", "string", "openai")
# Text part type -> its text field. Templates get all as type "text".
TEXT_FIELDS = {
    "text": "text", "input_text": "text", "output_text": "text",
    "refusal": "refusal", "thinking": "thinking",
}  # fmt: skip


class _TemplateFacts(NamedTuple):
    variables: frozenset[str]
    loops_over_content: bool
    tests_for_string: bool


class TemplateReads(NamedTuple):
    """Variables and features that a chat template reads besides the messages."""

    variables: frozenset[str]  # settable by chat_template_kwargs
    tools: bool
    developer: bool  # knows the role "developer"


def checked_content_format(given: Any) -> str:
    """Validate chat_template_content_format; None is "auto". Raises RequestError."""
    if given is not None and given not in CONTENT_FORMATS:
        raise RequestError(
            f"chat_template_content_format={given!r}: expected one of {', '.join(CONTENT_FORMATS)}."
        )
    return given or "auto"


def is_reserved(variable: str) -> bool:
    """Whether chat_template_kwargs may not set this variable."""
    return variable in _RESERVED


def template_reads(
    tokenizer: Tokenizer, chat_template: str | None, tools: Sequence[Mapping[str, Any]] | None
) -> TemplateReads:
    """Variables and features read by the template that `render_chat` would choose, by static
    analysis."""
    template = _choose_template(tokenizer, chat_template, _checked_tools(tools))
    variables = _read_template(template).variables
    developer = any(f"{quote}developer{quote}" in template for quote in "'\"")
    return TemplateReads(variables - _RESERVED, "tools" in variables, developer)


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    chat_template: str | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    image: str | None = None,
    content_format: str | None = None,
) -> str:
    """Render a conversation to a prompt. Raises RequestError.

    `image` is the placeholder text of an image for templates that read only text; None: the model
    takes no images. `content_format` is one of CONTENT_FORMATS. Tools are dropped, and logged once,
    if the template does not read them.
    """
    wanted = checked_content_format(content_format)
    _check_messages(messages, images=image is not None)
    plain_tools = _checked_tools(tools)
    if add_generation_prompt and continue_final_message:
        raise RequestError(
            "add_generation_prompt and continue_final_message are both true; the prompt either "
            "opens a new message or continues the last one. Set one of them to false."
        )
    template = _choose_template(tokenizer, chat_template, plain_tools)
    facts = _read_template(template)
    variables = _variables(facts, template, chat_template_kwargs or {})
    if plain_tools and "tools" not in facts.variables:
        _warn_of_unread_tools(template)
    return run_template(
        tokenizer,
        [
            _fit_calls(_fit_content(message, facts, image or "", wanted), f"messages[{index}]")
            for index, message in enumerate(messages)
        ],
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=plain_tools,
        **variables,
    )


def run_template(tokenizer: Tokenizer, messages: list[dict[str, Any]], **options: Any) -> str:
    """Run a chat template. Raises RequestError for any failure in it."""
    confined = tokenizer.confined_for(0)
    if confined is not None:
        return confined.run_template(messages, options)
    try:
        prompt = tokenizer.hf.apply_chat_template(messages, tokenize=False, **options)
    except RequestError:  # abandoned
        raise
    # A template is a program: rendering it can raise any exception.
    except Exception as error:
        why = str(error) or f"it raised {type(error).__name__} without a message"
        raise RequestError(f"The chat template refused these messages: {why}") from error
    assert isinstance(prompt, str), "one conversation renders to one string"
    return prompt


def _choose_template(
    tokenizer: Tokenizer, chat_template: str | None, tools: list[dict[str, Any]] | None
) -> str:
    if chat_template is None and not tokenizer.hf.chat_template:
        raise RequestError(
            "This tokenizer has no chat template. Give one as chat_template, or send a plain "
            "prompt instead of messages."
        )
    try:
        return tokenizer.hf.get_chat_template(chat_template, tools)
    except ValueError as error:
        raise RequestError(f"No chat template can be chosen: {error}") from error


def _check_messages(messages: Sequence[Message], *, images: bool) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages must be a list with at least one message.")
    for index, message in enumerate(messages):
        _check_message(message, f"messages[{index}]", images=images)


def _check_message(message: Message, where: str, *, images: bool) -> None:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"{where} is a {type(message).__name__}, expected a dict with role and content."
        )
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where} needs a role, a string such as 'user' or 'assistant'.")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return
    if isinstance(content, list | tuple):
        for number, part in enumerate(content):
            if not (images and part in MARKS):
                _check_part(part, f"{where}.content[{number}]")
    elif not isinstance(content, str):
        raise RequestError(
            f"{where}.content is a {type(content).__name__}, expected a string or a list of "
            "text parts."
        )


def _check_part(part: object, where: str) -> None:
    if not isinstance(part, Mapping):
        raise RequestError(
            f"{where} is a {type(part).__name__}, expected {{'type': 'text', 'text': ...}}."
        )
    kind = part.get("type")
    if not isinstance(kind, str):
        raise RequestError(f"{where} needs a type, such as 'text'.")
    if kind not in TEXT_FIELDS:
        raise RequestError(f"{where} has type {kind!r}: this model reads 'text' parts alone.")
    if not isinstance(part.get(TEXT_FIELDS[kind]), str):
        raise RequestError(f"{where} needs a {TEXT_FIELDS[kind]}, a string.")


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Validated tools as plain dicts; None for an empty list."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple):
        raise RequestError(f"tools is a {type(tools).__name__}, expected a list of dicts.")
    for index, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise RequestError(
                f"tools[{index}] is a {type(tool).__name__}, expected a dict (a JSON schema)."
            )
    return [dict(tool) for tool in tools] or None


@lru_cache(maxsize=32)
def _warn_of_unread_tools(template: str) -> None:
    """Log once per template that it ignores tools."""
    logger.warning(
        "Tools were given, but this chat template does not read tools, so the model is not told of "
        "them. Choose a template that describes tools with --chat-template. The template begins "
        "with %.80r.",
        template,
    )


def _variables(facts: _TemplateFacts, template: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given variables that the template reads. Others are dropped and logged once, since
    scripts often set one model's variables for all. Raises RequestError for arguments of the
    renderer."""
    for name in given:
        if name in _RESERVED:
            raise RequestError(
                f"chat_template_kwargs may not set {name!r}: it is an argument of the renderer, "
                "not a variable of the template."
            )
        if name not in facts.variables:
            _warn_of_unread_variable(template, name)
    return {name: value for name, value in given.items() if name in facts.variables}


@lru_cache(maxsize=32)
def _warn_of_unread_variable(template: str, name: str) -> None:
    known = ", ".join(sorted(_read_template(template).variables - _RESERVED)) or "nothing"
    logger.warning(
        "chat_template_kwargs has %r, which this chat template does not read. It reads: %s.",
        name, known,
    )  # fmt: skip


def _fit_content(
    message: Message, facts: _TemplateFacts, image: str, wanted: str
) -> dict[str, Any]:
    """Convert the message's content to a string or to parts, as requested or ("auto") as the
    template reads it."""
    content = message.get("content")
    takes_parts = facts.loops_over_content if wanted == "auto" else wanted == "openai"
    takes_strings = wanted == "string" or not takes_parts or facts.tests_for_string
    if content is None:  # with tool calls; templates concatenate it
        return {**message, "content": "" if takes_strings else []}
    if isinstance(content, list | tuple):
        parts = [_as_text_part(part) for part in content]
        return {**message, "content": parts if takes_parts else with_text(parts, image)}
    if isinstance(content, str) and (wanted == "openai" or not takes_strings):
        return {**message, "content": [{"type": "text", "text": content}]}
    return dict(message)


def _as_text_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert other text parts, such as refusals, to type "text", which templates know."""
    kind = part["type"]
    if kind == "text" or kind not in TEXT_FIELDS:
        return part
    return {"type": "text", "text": part[TEXT_FIELDS[kind]]}


def _fit_calls(message: dict[str, Any], where: str) -> dict[str, Any]:
    """Decode tool call arguments from JSON text to objects, which templates serialise."""
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in message.items() if name != "tool_calls"}
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{where}.tool_calls is a {type(calls).__name__}, expected a list.")
    fitted = [_fit_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return {**message, "tool_calls": fitted}


def _fit_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise RequestError(f"{where} is a {type(call).__name__}, expected a dict.")
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    return {**call, "function": {**function, "arguments": _arguments_of(function)}}


def _arguments_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Decode an earlier call's arguments; {} if invalid: an error would make the conversation
    unusable from then on."""
    value = function.get("arguments") or {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, Mapping):
        return dict(value)
    logger.debug(  # repeats with each request of the conversation
        "The arguments of an earlier call of %.80r are no JSON object; the template gets {}.",
        function.get("name"),
    )
    return {}


@lru_cache(maxsize=32)
def _read_template(template: str) -> _TemplateFacts:
    """Facts from the template's syntax tree, without running it."""
    if len(template) > MOST_TEMPLATE:
        raise RequestError(
            f"The chat template has {len(template)} characters; expected {MOST_TEMPLATE} at most."
        )
    try:
        tree = _parsing_environment().parse(template)
        variables = find_undeclared_variables(tree)
    except TemplateError as error:
        raise RequestError(f"The chat template is not valid: {error}") from error
    except RecursionError as error:
        raise RequestError("The chat template is nested too deeply to be read.") from error
    return _TemplateFacts(
        variables=frozenset(variables),
        loops_over_content=any(_is_content(loop.iter) for loop in tree.find_all(nodes.For)),
        tests_for_string=any(test.name == "string" for test in tree.find_all(nodes.Test)),
    )


def _is_content(expression: nodes.Node) -> bool:
    """Whether an expression reads `content`, `x.content` or `x['content']`, filtered or not."""
    if isinstance(expression, nodes.Filter) and expression.node is not None:
        return _is_content(expression.node)
    if isinstance(expression, nodes.Getitem):
        return isinstance(expression.arg, nodes.Const) and expression.arg.value == "content"
    if isinstance(expression, nodes.Getattr):
        return expression.attr == "content"
    return isinstance(expression, nodes.Name) and expression.name == "content"


class _GenerationBlock(Extension):
    """Makes the parser accept transformers' `{% generation %}` block."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _parsing_environment() -> ImmutableSandboxedEnvironment:
    # For parsing only, with transformers' options, so that the syntax tree is the same.
    return ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
