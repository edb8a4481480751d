"""The models of the experiment `panel`: a dozen kinds of small networks, how a client trains each, and what is measured."""
