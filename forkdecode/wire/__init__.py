"""Records as msgpack: between the front end and the engine process, and in journals."""
