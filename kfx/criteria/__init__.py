"""Criteria by which kernels are chosen: the laws that theory states of them, and what each loses on known truths."""
