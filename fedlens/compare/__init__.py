"""Studies: methods against each other on one machine, by the server's round engine and the product's client.

study.py             the TOML file, and presets/
plan.py              from a study to its runs: one for each method and seed
bundles.py           what is exported for them
direct_transport.py  a client's calls, answered by the round engine without a socket
study_clock.py       time that stands still while somebody works
running.py           one run, in a process of its own
examination.py       what each client sees in everybody's photos at its end
jobs.py, session.py  many of them, on all cores, with progress
results.py, ...      what came out: JSON, tables, plots
"""
