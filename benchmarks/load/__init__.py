"""Load for a server: what is asked, at which times, by which kinds of clients."""
