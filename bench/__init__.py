"""Measures of time, size and bytes: each against a floor taken in the same run."""
