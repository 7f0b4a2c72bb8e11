"""Work on what strangers send, in processes that can be killed, with limits of time and memory."""
