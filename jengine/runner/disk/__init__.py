"""Persistent files between starts: the compile cache, the recorded cache size, bundles of both."""
