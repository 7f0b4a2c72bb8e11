"""Executors run plans: submit a plan, get its StepOutput later.

Must not know: requests, how a plan was decided.
"""
