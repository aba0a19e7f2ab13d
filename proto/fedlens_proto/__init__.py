"""What every part of FedLens shares: messages, blobs, bundles and client randomness."""
