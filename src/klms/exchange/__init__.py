"""Federated learning over whatever moves bytes: a `Server` and its `Client`s, named arrays in and out, both directions.

Nothing here knows a framework, and only NumPy is needed. An adapter says where bytes travel and where a client keeps
its state. `klms.flower` is one; a program with sockets needs none.
"""
