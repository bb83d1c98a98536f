"""`python -m has` is the command `has`."""

from has.cli.main import main

if __name__ == "__main__":
    main()
