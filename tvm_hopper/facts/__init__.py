"""What the hardware is: limits, layouts and counts, each with its source; nothing of TVM."""
