"""`python -m weft` is the command `weft`."""

from weft.cli import main

if __name__ == "__main__":
    main()
