"""Local training and evaluation with torch. A model is a function of one flat vector of parameters."""
