"""Federated learning over any transport: a `Server` and its `Client`s, with named arrays in and out on both sides.

Nothing here depends on a framework; only NumPy is needed. An adapter moves the bytes and stores a client's state:
`klms.flower` is an adapter, and a program with sockets needs none.
"""
