"""Many emulated clients on one machine: each a whole `EdgeClient`, spread over worker processes.

`config.py` what to run, `processes.py` the parent's side, `worker.py` a worker's side, `messages.py` what they tell
each other, `turns.py` and `parking.py` how a worker's clients share a thread and stop, `progress.py` what is shown.
"""
