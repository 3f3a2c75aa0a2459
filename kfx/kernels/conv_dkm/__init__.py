"""Convolutional deep kernel machines (Milsom, Anson & Aitchison 2023), whose layers have learned Gram matrices."""
