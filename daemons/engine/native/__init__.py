"""The compiled kernels: whole forwards of a decoder on a CPU, and attention for other models.

They are built where a compiler is at hand (``python -m daemons.engine.native``) and absent without
loss elsewhere: torch then does the same through the same seams.
"""
