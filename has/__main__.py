"""`python -m has` is the command `has`."""

from has.cli.entry import main

if __name__ == "__main__":
    main()
