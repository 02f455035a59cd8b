"""Questions about TIR: recognize, compare, never change."""
