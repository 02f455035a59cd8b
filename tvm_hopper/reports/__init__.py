"""What people are told: what a kernel is made of, and what this machine has."""
