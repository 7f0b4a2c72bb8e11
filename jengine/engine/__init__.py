"""The engine: prompts in, outputs out, over the scheduler and an executor.

`core` is the scheduling loop; `input_processor` and `output_processor` are its two ends; `session`
joins them to a client of the core.
"""
