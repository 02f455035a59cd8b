"""What users ask for: keys, options, targets, and where each of them is found."""
