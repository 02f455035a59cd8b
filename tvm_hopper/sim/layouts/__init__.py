"""Where bytes lie in shared memory, as the instructions' own manual says: nothing of `facts`."""
