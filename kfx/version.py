"""The version of kfx."""

__version__ = "0.2.0"
