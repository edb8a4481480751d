"""Speed and quality: the benches that `klms bench` prints, and the plain algorithms that they compare with."""
