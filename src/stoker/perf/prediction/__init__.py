"""Predicts a step of a program on machines that it has not run on: a time, an interval, and its certainty."""
