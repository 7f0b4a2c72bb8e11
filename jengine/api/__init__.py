"""The Python API: LLM, AsyncLLM, generate(), array functions and taps."""
