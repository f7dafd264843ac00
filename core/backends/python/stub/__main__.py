"""The program of a stub process: `PYTHON FOLDER DESCRIPTOR... NAME`. FOLDER is this one, and its path."""

from trident_stub.main import main

if __name__ == "__main__":
    main()
