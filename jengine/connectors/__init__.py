"""Places for blocks of the KV cache outside of the devices: what is there, and how it is read.

In: content keys and bytes. Out: the same, later or elsewhere. Must not know requests' texts, plans
or arrays on devices.
"""
