"""Check the synchronisation protocol of a kernel (its role skeleton) in every interleaving."""
