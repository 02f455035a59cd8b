"""Prove which CTAs of a launch behave alike except for coordinates."""
