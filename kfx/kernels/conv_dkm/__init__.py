"""Convolutional deep kernel machines (Milsom, Anson & Aitchison 2023): layers of Gram matrices that are learned."""
