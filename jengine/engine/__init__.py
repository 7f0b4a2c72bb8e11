"""The engine: prompts in, outputs out, over the scheduler and an executor.

`core` is the scheduling loop. In the front, `session` connects `input_processor` and
`output_processor` to a `client` of the core.
"""
