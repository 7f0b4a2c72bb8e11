"""The engine: prompts in, answers out, over the scheduler and an executor.

core is the heart; intake and answers are its two ends; llm and async_engine are what users hold.
"""
