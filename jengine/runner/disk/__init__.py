"""What stays on disk between starts: compiled programs, the cache size, bundles of both."""
