#!/usr/bin/env bash
# install-server.sh SOURCE VENV: install a FedLens server, without torch, from a checkout into a new virtual environment.
set -euo pipefail
source=$(realpath "$1")
python3 -m venv "$2"
"$2/bin/pip" install --quiet --no-input --disable-pip-version-check -c "$source/constraints.txt" "$source[server]"
"$2/bin/python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is not None)'
"$2/bin/fedlens" --version
