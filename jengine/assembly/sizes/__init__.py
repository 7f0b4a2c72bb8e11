"""How large steps and caches are: from settings and the device to shapes."""
