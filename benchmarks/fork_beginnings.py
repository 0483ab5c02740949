"""Do answers differ before they say where to look? Where not, a fork draws what a new answer would draw.

python benchmarks/fork_beginnings.py RUN … [--steps N]        runs with a zoom tool, as of recipes/medvr.toml

Rollout `entropy-regrounding` forks an answer just before the first coordinate of a call. It gives other
answers than plain sampling only as far as what comes before that coordinate varies, and as few answers call.
"""

import argparse
import collections
import re
from pathlib import Path

from evidcore.runs.read import lines

BEGINNING = re.compile(r".*?\[\s*(?=-?\d)", re.DOTALL)


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--steps", type=int, help="only the first so many steps of training")
    given = parser.parse_args()
    print("answers  that call  of these with the commonest beginning  run")
    for run in given.runs:
        answers, beginnings = 0, collections.Counter[str]()
        for file in sorted((run / "rollouts").glob("*.jsonl")):
            for line in lines(file):
                if given.steps and line["step"] > given.steps:
                    break
                for item in line["rollouts"]:
                    answers += 1
                    result = BEGINNING.match(item["turns"][0]["text"]) if item["turns"] else None
                    beginnings.update([result[0]] if result else [])
        calls = beginnings.total()
        share = 100 * beginnings.most_common(1)[0][1] / calls if calls else 0.0
        print(f"{answers:7}  {100 * calls / answers:7.1f} %  {share:33.1f} %  {run.name}")


if __name__ == "__main__":
    main()
