"""Runs work on untrusted input in killable processes with limits of time and memory."""
