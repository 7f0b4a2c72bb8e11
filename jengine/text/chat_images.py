"""Extracts images and videos from chat messages, leaving plain parts in their places.

In: messages as in the OpenAI API. Out: messages with `{"type": "image"}` or `{"type": "video"}`
parts, as templates read them, and the media in order. Must not open any of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jengine.errors import RequestError

Message = Mapping[str, Any]
MARKS: tuple[dict[str, Any], ...] = ({"type": "image"}, {"type": "video"})
KINDS = ("image_url", "input_image", "image_pil")
REFUSED = {
    "image_embeds": "Send image_url.",
    "input_audio": "Send image_url.",
    "audio_url": "Send image_url.",
    "audio_embeds": "Send image_url.",
    "file": "Send image_url.",
    "video_url": "There is no decoder of videos. Send frames, which are URLs of images: "
    '{"type": "video", "video": [url, ...]}.',
}


class ImagePart(NamedTuple):
    """An image or video of a conversation, and where it was found."""

    given: Any  # a URL or PIL image; for a video a list of these
    where: str
    kind: str = "image"


def without_images(messages: Any) -> tuple[Any, list[ImagePart]]:
    """Replace each image by a plain part. Returns the messages and the images."""
    found: list[ImagePart] = []
    if not isinstance(messages, list | tuple):
        return messages, found
    return [_marked(one, f"messages[{i}]", found) for i, one in enumerate(messages)], found


def with_text(parts: Sequence[Any], placeholder: str) -> str:
    """A message's content as one string, with image placeholders before the text. Raises
    RequestError for videos."""
    if any(part.get("type") == "video" for part in parts):
        raise RequestError("This chat template reads texts alone, which a video has no place in.")
    texts = [part["text"] for part in parts if part.get("type") == "text"]
    images = [placeholder for part in parts if part.get("type") == "image"]
    return "\n".join([*images, *texts])


def _marked(message: Any, where: str, found: list[ImagePart]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    parts = [_part(one, f"{where}.content[{n}]", found) for n, one in enumerate(content)]
    return {**message, "content": parts}


def _part(part: Any, where: str, found: list[ImagePart]) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in REFUSED:
        raise RequestError(f"{where} has type {kind!r}: that is not built. {REFUSED[kind]}")
    if kind == "video":
        frames = part.get("video")
        if not isinstance(frames, list | tuple) or not frames:
            raise RequestError(f"{where} needs a video, a list of frames.")
        found.append(ImagePart(list(frames), where, "video"))
        return {"type": "video"}
    if kind not in KINDS:
        return part
    given = part.get("image_pil") if kind == "image_pil" else part.get("image_url")
    if isinstance(given, Mapping):
        given = given.get("url")
    if kind != "image_pil" and not isinstance(given, str):
        raise RequestError(f"{where} needs an image_url with a url, a string.")
    if given is None:
        raise RequestError(f"{where} needs an image_pil, a PIL image.")
    found.append(ImagePart(given, where))
    return {"type": "image"}
