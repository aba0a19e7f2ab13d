"""The `fedlens` command, the demo and studies: what brings server, clients and export together."""
