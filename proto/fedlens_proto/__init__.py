"""The parts that server, clients and export share: messages, blobs, bundles and client randomness.

It imports no other package of FedLens. Begin with `blob.py` and `manifest.py`.
"""
