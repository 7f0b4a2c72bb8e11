"""Names of block contents: a chain of sha256 over tokens and everything else that shapes the cache.

In: token ids, the parent's hash, extra keys. Out: 32 bytes that are equal only for equal content.
It is a security boundary: every string is length-prefixed, so no two inputs share an encoding.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import sha256
from os import urandom

from jengine.request import WireRequest

ExtraKey = tuple[str, ...]
# Hashes are equal in every process, so that other processes can use stored blocks, unless they
# depend on something local.
THIS_PROCESS = urandom(16).hex()


def root_hash(weights_version: int, stored_as: str = "") -> bytes:
    """Parent hash of a first block: differs by weights version and by the storage format of keys
    and values, so that their blocks are never mixed."""
    return sha256(b"root" + _number(weights_version) + stored_as.encode()).digest()


def block_hash(parent: bytes, token_ids: Sequence[int], extra: Sequence[ExtraKey] = ()) -> bytes:
    """Hash of a full block that follows the block hashed as `parent`."""
    tokens = array("q", token_ids)
    encoded = parent + _number(len(tokens)) + tokens.tobytes() + _encode_keys(extra)
    return sha256(encoded).digest()


def block_hashes(
    parent: bytes, token_ids: Sequence[int], size: int, extra: Sequence[Sequence[ExtraKey]]
) -> list[bytes]:
    """Hashes of full blocks of this size, each with its extra keys, that follow `parent`."""
    tokens, length, found = array("q", token_ids).tobytes(), _number(size), []
    for start, keys in zip(range(0, len(tokens), 8 * size), extra, strict=True):
        parts = (parent, length, tokens[start : start + 8 * size], _encode_keys(keys))
        parent = sha256(b"".join(parts)).digest()
        found.append(parent)
    return found


def extra_keys(wire: WireRequest, block_index: int, block_size: int) -> list[ExtraKey]:
    """What besides tokens determines a block's KV (adapter, images, salt, ...); later blocks
    inherit it by the chain."""
    keys: list[ExtraKey] = []
    if block_index and wire.embeds is None and not wire.media:
        return keys
    if wire.cache_salt is not None and block_index == 0:
        keys.append(("cache_salt", wire.cache_salt))
    if wire.taps and block_index == 0:
        # Interventions change keys and values, by functions that have no name of their own.
        keys.append(("taps", str(wire.taps), THIS_PROCESS))
    if wire.adapter and block_index == 0:
        keys.append(("lora", wire.adapter))
    if wire.embeds is not None and block_index * block_size < len(wire.prompt_token_ids):
        row = len(wire.embeds) // len(wire.prompt_token_ids)  # bytes of one token
        rows = wire.embeds[block_index * block_size * row : (block_index + 1) * block_size * row]
        keys.append(("prompt_embeds", sha256(rows).hexdigest()))
    first, end = block_index * block_size, (block_index + 1) * block_size
    for span in wire.media:
        if span.offset < end and span.end > first:
            keys.append(("mm", span.key, str(span.offset - first)))
    return keys


def group_suffix(group: int) -> bytes:
    """Suffix that turns a block hash into the content key of one cache group."""
    return group.to_bytes(4, "little")


def group_of(key: bytes) -> int:
    """The cache group of a key."""
    return int.from_bytes(key[-4:], "little")


def _encode_keys(keys: Sequence[ExtraKey]) -> bytes:
    if not keys:
        return NO_KEYS
    parts = [_number(len(keys))]
    for key in keys:
        parts.append(_number(len(key)))
        for text in key:
            # A lone surrogate may arrive in JSON and must not stop the engine.
            data = text.encode("utf-8", "surrogatepass")
            parts += (_number(len(data)), data)
    return b"".join(parts)


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


NO_KEYS = _number(0)  # as nearly every block
