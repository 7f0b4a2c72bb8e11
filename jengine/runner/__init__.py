"""The bridge: plans in, arrays through one compiled step, tokens out.

The only room that turns host numbers into device arrays and back. Must not know requests or text.
"""
