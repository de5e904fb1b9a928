"""`python -m cpfl`."""

from cpfl.cli import main

if __name__ == "__main__":
    main()
