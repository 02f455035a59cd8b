"""Instructions, by family: what they do to values, barriers, proxies and time."""
