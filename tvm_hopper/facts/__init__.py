"""Hardware facts: limits, layouts and counts, each with its source; independent of TVM."""
