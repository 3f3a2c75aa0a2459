"""The version of kfx, and how its optional dependencies are installed."""

__version__ = "0.2.0"


def to_install(extra: str) -> str:
    """The command that installs an extra of the distribution, which is not called kfx: that name is taken."""
    return f"pip install 'kernel-flows[{extra}]'"
