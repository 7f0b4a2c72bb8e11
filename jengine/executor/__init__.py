"""Moving plans to where they run. Submit a plan, get its StepOutput later.

Must not know: requests, how a plan was decided.
"""
