"""Measurements that anyone can repeat: a table, and one JSON object as the last line."""
