"""`python -m weft` is the command `weft`."""

from weft_command import main

if __name__ == "__main__":
    main()
