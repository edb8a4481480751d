"""What `make docs` adds to the pages under docs/: other files of the repository, the command line, the notebooks."""
