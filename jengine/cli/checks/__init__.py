"""Checks of `jengine doctor`, one file per subject, each with `check` that returns findings.

A file is imported when it runs, so that a broken installation becomes a finding rather than a
crash.
"""
