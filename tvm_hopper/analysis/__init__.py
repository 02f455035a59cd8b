"""Questions about TIR: recognise, compare, never change."""
