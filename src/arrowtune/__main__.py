"""`python -m arrowtune`."""

from arrowtune.cli import main

if __name__ == "__main__":
    main()
