"""Images and videos in prompts: opened, resized and cut into patches, on the host, without torch.

In: pictures as users give them. Out: the spans of a prompt. Must not know engines or devices.

An image is a span of tokens whose embeddings an encoder makes. The front cuts it into patches and
puts as many tokens into the prompt as it has embeddings (`media`). The scheduler gives each image
rows of an array on the device, by the digest of its content (`scheduler/encoder_cache.py`): one
that is there is not encoded again, a request whose images do not fit waits at a gate, and rows are
free again once the tokens are computed. A plan brings new images; the runner queues the encoder's
programs, which have a ladder of patches of their own, before the step. The step takes embeddings
from the array by an index per token, so a prefill chunk may end within an image. It is a variant of
its own: decodes and text run what they would run without images. Where tokens are rotated by frame,
row and column, a chunk brings these, and a row has a number on the device that is added to all
later positions. Digests are part of prefix hashes. What URLs in chats lead to is decoded by a
process of its own, with limits of memory and time (`confined`). On a mesh the tower's heads and
columns are sharded as the decoder's are. With `mm_encoder_tp_mode="data"` each device has the whole
tower (`weights/stage_places.py`) and encodes some images: the largest go to the devices with least,
a run is as many packed inputs side by side, and embeddings are gathered once at its end
(`runner/programs/encoders.py`). Where tokens of an image attend to each other (Gemma 3 and 4), one
step runs all of them: chunks end beside such images, and attention to later tokens is added to that
of the cache by their log-sum-exp (`runner/step/image_attention.py`). A video is frames, two to a
patch (`media/videos.py`): one span whose positions grow with time, or, where a text says when each
frame is seen (Qwen3-VL), a span for each. So has an image that is shown again in crops
(`media/pan_and_scan.py`); the text before it is tokenized with the user's. Programs of images are
compiled at the start, unless `limit_mm_per_prompt` allows none. Special tokens of media in what
users write are text: chat templates see marks in their place (`text/plain_marks.py`).
"""
