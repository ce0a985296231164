"""Scales times at the vendors' rates to times of real programs: coefficients, their fit and their uncertainty."""
