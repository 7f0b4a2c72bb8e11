"""Builds a tokenizer from a GGUF file's metadata.

In: metadata. Out: a `Tokenizer` with special tokens and chat templates. Must not know how files are
read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from jengine.errors import CheckpointError
from jengine.text.tokenizer import Tokenizer
from jengine.text.transformers_names import keep_names
from jengine.text.vocabulary.stored import ADVICE, ROLES, TEMPLATE, Vocabulary, read_vocabulary
from jengine.text.vocabulary.tokenizer_models import BUILDERS, added_tokens, splitting_of

# Defaults of adding BOS, EOS and separators, by vocabulary kind.
ADDS = {
    "gpt2": (False, False, False),
    "llama": (True, False, False),
    "gemma4": (False, False, False),
    "t5": (False, True, False),
    "bert": (True, False, True),
}
# Phi-3's special tokens strip the spaces after them, except these; no GGUF key says so.
TAKES_SPACES, NOT_SPACES = "phi3", {"<unk>", "<s>", "<|endoftext|>"}


def made_tokenizer(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """Build the tokenizer. Raises CheckpointError."""
    keep_names()
    # As slow to import as jax, and engines without a tokenizer do not need it.
    from transformers import PreTrainedTokenizerFast

    vocabulary = known_vocabulary(metadata, where)
    backend = _backend(vocabulary)
    roles = {f"{role}_token": vocabulary.role(role) for role in ROLES}
    types = ["token_type_ids"] if vocabulary.model == "bert" else []
    hf = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=_templates(metadata),
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", *types, "attention_mask"],
        **{role: text for role, text in roles.items() if text is not None},
    )
    return Tokenizer(hf)


def known_vocabulary(metadata: Mapping[str, Any], where: str) -> Vocabulary:
    """Read the vocabulary. Raises CheckpointError if its kind or its splitting is not built."""
    vocabulary = read_vocabulary(metadata, where)
    if vocabulary.model not in BUILDERS:
        raise vocabulary.refuse(
            f"its vocabulary is of the kind {vocabulary.model!r} (tokenizer.ggml.model), which is"
            f" not built: known are {', '.join(BUILDERS)}"
        )
    if vocabulary.model == "gpt2":
        splitting_of(vocabulary)
    return vocabulary


def _backend(vocabulary: Vocabulary) -> Backend:
    try:
        found = BUILDERS[vocabulary.model](vocabulary)
        found.add_tokens([_added(vocabulary, *one) for one in added_tokens(vocabulary)])
        found.post_processor = _around(vocabulary)
    except CheckpointError:
        raise
    # Rust errors, such as for invalid merges, are plain Exceptions.
    except Exception as error:
        raise vocabulary.refuse(f"its vocabulary makes no tokenizer: {error}") from error
    return found


def _added(vocabulary: Vocabulary, text: str, special: bool) -> AddedToken:
    takes = special and vocabulary.architecture == TAKES_SPACES and vocabulary.model == "llama"
    strip = takes and text not in NOT_SPACES
    return AddedToken(text, special=special, normalized=False, rstrip=strip)


def _around(vocabulary: Vocabulary) -> Any:
    """Post-processor that adds special tokens around a text or a pair."""
    bos, eos, sep = ADDS[vocabulary.model]
    is_bytes = vocabulary.model == "gpt2"
    if is_bytes:
        splitting = splitting_of(vocabulary)
        bos, sep = splitting.adds_bos, splitting.adds_sep
    first = [vocabulary.role("bos")] * vocabulary.flag("add_bos_token", bos)
    last = [vocabulary.role("eos")] * vocabulary.flag("add_eos_token", eos)
    between = [vocabulary.role("sep")] * vocabulary.flag("add_sep_token", sep)
    last = last if between == last else [*between, *last]
    steps: list[Any] = [processors.ByteLevel(trim_offsets=False)] if is_bytes else []
    return processors.Sequence([*steps, _template(vocabulary, first, last)])


def _template(vocabulary: Vocabulary, first: list[str | None], last: list[str | None]) -> Any:
    before, after = ([one for one in given if one is not None] for given in (first, last))
    typed = int(vocabulary.model == "bert")
    second = [f"$B:{typed}", *(f"{one}:{typed}" for one in after)]
    twice = before if vocabulary.model != "bert" else []
    return processors.TemplateProcessing(
        single=[*before, "$A:0", *after],
        pair=[*before, "$A:0", *after, *(f"{one}:{typed}" for one in twice), *second],
        special_tokens=[(one, vocabulary.tokens.index(one)) for one in {*before, *after}],
    )


def _templates(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    """Chat template, or several by name."""
    plain = metadata.get(TEMPLATE)
    named = {
        key.removeprefix(f"{TEMPLATE}."): value
        for key, value in metadata.items()
        if key.startswith(f"{TEMPLATE}.") and isinstance(value, str)
    }
    if plain is not None and not isinstance(plain, str):
        raise CheckpointError(f"{TEMPLATE} is {plain!r:.60}, expected a text. {ADVICE}")
    if not named:
        return plain
    return {**({} if plain is None else {"default": plain}), **named}
