"""What users request: keys, options, targets, and where each of them is found."""
