"""Instructions, by family: their effects on values, barriers, proxies and time."""
