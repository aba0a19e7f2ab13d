"""The demo: a whole federation on one machine, and its report."""
