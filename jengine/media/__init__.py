"""Images and videos in prompts: opened, resized and cut into patches, on the host, without torch.

In: pictures as users give them. Out: the spans of a prompt. Must not know engines or devices.
"""
