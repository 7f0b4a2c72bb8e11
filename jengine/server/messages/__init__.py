"""/v1/messages in the form of Anthropic's API, over the chat's parts."""
