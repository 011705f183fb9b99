"""The gRPC service: a front end in asyncio before an engine process."""
