"""Convolutional networks of infinite width."""
