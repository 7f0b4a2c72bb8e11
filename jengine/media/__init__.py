"""Images and videos in prompts: opened, resized and cut into patches, on the host, without torch.

In: images and videos as users give them. Out: the spans of a prompt. Must not know engines or
devices.

An image is a span of prompt tokens whose embeddings come from an encoder. The front end cuts it
into patches, and expands its placeholder to as many tokens as it has embeddings. The scheduler
assigns each image rows of an array on the device, by content digest (`scheduler/encoder_cache.py`):
a cached image is not encoded again, a request whose images do not fit waits at a gate, and rows can
be evicted once the tokens are computed. Digests are part of prefix hashes. A plan carries new
images; the runner queues the encoder's programs, which have their own ladder of patch counts,
before the step. The step gathers embeddings by an index per token, so a prefill chunk may end
within an image. It is a separate variant: decodes and text prompts run the programs without images.
With MRoPE a chunk carries the positions, and each row has an offset on the device for later tokens.

On a mesh the tower is sharded like the decoder, or with `mm_encoder_tp_mode="data"` replicated
(`weights/stage_places.py`): then each device encodes some of the images, assigned largest first to
the least loaded, and embeddings are all-gathered once at the end of a run
(`runner/programs/encoders.py`). Encoder programs are compiled at start, unless
`limit_mm_per_prompt` allows no images.

Where the tokens of an image attend to each other (Gemma 3 and 4), a single step runs all of them:
prefill chunks do not cut such images, and attention to later tokens is merged with that over the
cache by log-sum-exp (`runner/step/image_attention.py`). A video is a sequence of frames, two per
patch (`media/videos.py`): one span whose positions grow with time, or one span per frame where
timestamps in the text separate them (Qwen3-VL). An image with pan-and-scan crops has several spans
too (`media/pan_and_scan.py`); the text before it is tokenized together with the user's.

Untrusted files are decoded in separate processes with limits of memory and time (`confined`).
Special tokens of media in users' texts are plain text: chat templates see marks in their place
(`text/plain_marks.py`).
"""
