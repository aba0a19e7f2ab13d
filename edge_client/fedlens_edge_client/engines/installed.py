"""The installed version of ExecuTorch, found without importing it."""

from importlib.metadata import PackageNotFoundError, version

from fedlens_edge_client.engines import RuntimeMissing


def runtime_version() -> str:
    """The version of ExecuTorch that is installed.

    Raises:
        RuntimeMissing: ExecuTorch is not installed.
    """
    try:
        return version("executorch")
    except PackageNotFoundError as error:
        raise RuntimeMissing(
            "engine executorch needs ExecuTorch, which is not installed: pip install 'fedlens[executorch]', "
            "or choose engine torch"
        ) from error
