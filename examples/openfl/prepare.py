"""Write MNIST into one file for the federation: `python prepare.py digits.npz`."""

import sys

import numpy as np

from klms import data

digits = data.load("mnist")
np.savez(sys.argv[1], **{name: getattr(digits, name) for name in ("train_x", "train_y", "test_x", "test_y")})
