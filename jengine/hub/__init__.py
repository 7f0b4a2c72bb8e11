"""Models of the Hugging Face Hub: a repository's name to a folder of its download cache.

In: `org/name` and what is wanted of it. Out: a local snapshot, or an error that says what to do.
Must not know engines or how files are read. huggingface_hub is imported when it is first needed.
"""
