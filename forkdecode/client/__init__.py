"""The SDK for a server elsewhere: the verbs and types of LLM, and no torch."""
