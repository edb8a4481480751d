"""The models of the experiment `panel`: small networks of a dozen kinds, and how clients train them."""
