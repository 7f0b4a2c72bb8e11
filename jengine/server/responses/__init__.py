"""/v1/responses, over the chat's parts."""
