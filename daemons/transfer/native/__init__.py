"""The compiled copier: combs into a neighbour's mapped memory, as fast as memory takes them.

It is built where a compiler is at hand (``python -m daemons.transfer.native``) and absent without
loss elsewhere: numpy then does the same, with more of the interpreter before and after.
"""
