"""Studies: methods compared on one machine, by the server's round engine and the product's client.

May import every package and `reports`, but not `demo`. Begin with `study.py` (the TOML file), then `plan.py` (its
runs), `session.py` (all runs on all cores), `run/` (one run) and `report/` (results).
"""
