"""HTTP: routes, bodies and their limits, uploads, blobs on their way out, long polls, the running service.

It may import `engine` and `store`; nothing of the server but `daemon.py` imports it. Begin with `client_routes.py`.
"""
