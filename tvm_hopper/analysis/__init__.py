"""Analyses of TIR: recognise and compare, never change."""
