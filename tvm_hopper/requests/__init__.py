"""User requests: annotations, options, targets, and where each is found."""
