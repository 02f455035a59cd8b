"""Reports for users: what a kernel consists of, and what this machine has."""
