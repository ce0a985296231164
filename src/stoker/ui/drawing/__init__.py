"""Drawings that several pages have in common."""
