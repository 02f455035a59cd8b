"""The role skeleton of a kernel: what its agents do to barriers, in every interleaving."""
