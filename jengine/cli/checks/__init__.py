"""The checks of `jengine doctor`, one file per subject. Each has `check`, which returns findings.

A file is imported when its turn comes, so that a broken installation is a finding, not a crash.
"""
