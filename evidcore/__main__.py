"""`python -m evidcore` is `evid`; `accelerate launch -m evidcore run …` starts it on many devices."""

import sys

if __name__ == "__main__":
    del sys.path[: not sys.flags.safe_path]  # the folder it is started in: its files are data, not code
    from evidcore.cli import main

    main()
