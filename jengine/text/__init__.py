"""Strings: text to token ids on input, token ids to text on output.

In: prompts and chat messages from users, token ids from the engine. Out: token ids, text. Must not
know: arrays, devices, the scheduler, HTTP. Only `tokenizer.py` and
`torch_later.py` import transformers.
"""
