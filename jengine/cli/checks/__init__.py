"""Checks of `jengine doctor`, one file per subject, each with `check` that returns findings.

A file is imported when its turn comes, so that a broken installation is a finding and no crash.
"""
