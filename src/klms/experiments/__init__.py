"""The paper's tables and figures: grids of runs, their results, and the documents made from them."""
