"""Splits in the plan of a running exchange: when they are begun, judged and taken back."""
