"""How fast and how good: the bench that `klms bench` prints, and the plain algorithms that it compares with."""
