"""`python -m forkdecode` is `forkdecode`."""

from forkdecode.cli import main

if __name__ == "__main__":
    main()
