"""Ordinary training programs whose memory is predicted, and counted."""
