"""Data sets: synthetic, images, tables, and the files behind them."""

from kfx.data.dataset import Dataset, one_hot, preprocess

__all__ = ["Dataset", "one_hot", "preprocess"]
