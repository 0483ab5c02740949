"""`python -m evidcore` is `evid`; `accelerate launch -m evidcore run …` starts it on many devices."""

from evidcore.cli import main

if __name__ == "__main__":
    main()
