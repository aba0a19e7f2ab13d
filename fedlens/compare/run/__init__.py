"""One run of a study: a federation in this process, with its own clock and transport.

It may import the server, the client and `reports`, and nothing else of `compare`. Begin with `running.py`.
"""
