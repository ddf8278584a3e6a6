"""``python -m adaptft`` is ``adaptft``."""

from adaptft.cli import main

if __name__ == "__main__":
    main()
