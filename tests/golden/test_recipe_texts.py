# ruff: noqa: E501  # a mistake a row
"""What recipes resolve to, and what is printed of every mistake: compared with what is committed here.

python tests/golden/test_recipe_texts.py --write        writes resolved/, ablations.txt and mistakes.txt anew
"""

import difflib
import functools
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
from evidcore_plugin_lab.ablation.definition import load_ablation

from evidcore.cli.show import recipe_schema
from evidcore.errors import EvidError
from evidcore.recipe import load, to_toml

HERE = Path(__file__).parent
RECIPES = HERE.parents[1] / "recipes"
WHOLE = [path for folder in (RECIPES, RECIPES / "paper") for path in sorted(folder.glob("*.toml"))]
ABLATIONS = sorted((RECIPES / "ablations").glob("*.toml"))

OFFERED = {  # what the stub package offers of each kind
    "dataset": "stub-scans:Scans stub-needy:Needy",
    "language": "stub-words:Words stub-published:Published",
    "encoder": "stub-eye:Eye",
    "bridge": "stub-line:Line",
    "view": "stub-plain:Plain stub-tagged:Tagged",
    "task": "stub-ask:Ask stub-ask-slice:AskSlice stub-ask-nothing:AskNothing",
    "scorer": "stub-scorer:Same stub-two-kinds:Same",
    "reader": "stub-reader:Book stub-two-kinds:Book",
    "segmenter": "stub-segmenter:Grow",
    "reward": "stub-judged:Judged stub-level:Level stub-greedy:greedy stub-untyped:untyped stub-odd:odd "
    "stub-twice:twice stub-loose:loose stub-not-callable:NOT_CALLABLE stub-not-there:Nowhere "
    "stub-cracked:_cracked:It stub-shared:Level",
    "metric": "stub-metric:Count",
    "evaluation": "stub-evaluation:Measure",
    "audit": "stub-listen:Listen",
    "tool": "stub-zoom:Zoom",
    "rollout": "stub-talk:Talk",
    "stage": "stub-tally:Tally stub-no-stage:no_stage",
}
TEXT = """\
schema = 1
name = "golden"
seed = 17

[dataset.chest]
use = "stub-scans"

[service.judge]
use = "stub-scorer"

[task.direct]
use = "stub-ask"
think = false

[model]
language = { use = "stub-words" }
view = { use = "stub-plain" }
encoder = { use = "stub-eye" }
bridge = { use = "stub-line" }

[[stage]]
kind = "sft"
train = ["bridge", "language"]
data = [
  { dataset = "chest", task = "stub-ask" },
  { dataset = "chest", task = "direct", share = 0.5 },
]
steps = 4
learning_rate = 2e-3

[[stage]]
kind = "grpo"
train = ["bridge", "language"]
data = [{ dataset = "chest", task = "stub-ask" }]
steps = 2
learning_rate = { bridge = 5e-4, language = 1e-4 }
[[stage.reward]]
use = "stub-judged"
weight = 0.5
[[stage.reward]]
use = "stub-level"
gate = "stub-judged"

[[stage]]
kind = "evaluate"
data = [{ dataset = "chest", task = "stub-ask", split = "test" }]
"""
FIT = '[[stage]]\nkind = "fit"\ncomponent = "%s"\ndata = [{ dataset = "chest" }]\n%s\n'
AUDIT = '[[stage]]\nkind = "audit"\ndata = [{ dataset = "chest", task = "stub-ask", split = "test" }]\n'
SET, REWARD, SFT, GRPO, EVALUATE = (
    'use = "stub-scans"\n',
    'use = "stub-judged"\n',
    "steps = 4\n",
    "steps = 2\n",
    'split = "test" }]\n',
)


def after(line, more):
    """Return the change that puts text behind a line."""
    return line, f"{line}{more}\n"


def first(kind, text):
    """Return the change that puts a stage before another."""
    return f'[[stage]]\nkind = "{kind}"', f'{text}\n[[stage]]\nkind = "{kind}"'


# what is written in place of what, and what `--set` is given
MISTAKES = {
    # the file
    "not TOML": [("steps = 4", "steps = = 4")],
    "a key twice": [("seed = 17", 'seed = 17\nname = "b"')],
    "the end of the file is missing": [(TEXT, "name = '''a")],
    "an empty file": [(TEXT, "")],
    "lists nest too deep": [("seed = 17", "seed = " + "[" * 2000 + "]" * 2000)],
    "a key has too many parts": [("seed = 17", ".".join(["a"] * 60) + " = 1")],
    # the top
    "schema": [("schema = 1", "schema = 2")],
    "schema is missing": [("schema = 1\n", "")],
    "name is missing": [('name = "golden"\n', "")],
    "name is no folder's": [('"golden"', '"a/b"')],
    "name is a number": [('"golden"', "3")],
    "seed below its bound": [("seed = 17", "seed = -17")],
    "seed above its bound": [("seed = 17", "seed = 2147483648")],
    "seed is a float": [("seed = 17", "seed = 1.5")],
    "seed is a whole float": [("seed = 17", "seed = 1.0")],
    "seed is true": [("seed = 17", "seed = true")],
    "seed is a date": [("seed = 17", "seed = 2024-01-01")],
    "observers is a text": [("seed = 17", 'seed = 17\nobservers = "loud"')],
    "an observer is a number": [("seed = 17", "seed = 17\nobservers = [3]")],
    "an observer that is not installed": [("seed = 17", 'seed = 17\nobservers = ["loud"]')],
    "threads": [("seed = 17", "seed = 17\nthreads = -1")],
    "recipe_folder": [("seed = 17", "seed = 17\nrecipe_folder = 3")],
    "fitted names no folder": [("seed = 17", 'seed = 17\nfitted = "nowhere"')],
    "an unknown key of the top": [("seed = 17", "sead = 17")],
    "an unknown key of the top that is like none": [("seed = 17", "seed = 17\nzzzzzz = 1")],
    "a key of the model at the top": [("seed = 17", 'seed = 17\nencoder = { use = "stub-eye" }')],
    "a key of several tables at the top": [("seed = 17", "seed = 17\ndata = []")],
    "a key of a reward at the top": [("seed = 17", "seed = 17\nweight = 1.0")],
    "a key of features at the top": [("seed = 17", "seed = 17\nmemory_gb = 1.0")],
    "a key of an inner table at the top": [("seed = 17", "seed = 17\nrank = 1")],
    # tables
    "dataset is missing": [("[dataset.chest]\n" + SET, "")],
    "dataset is a number": [("[dataset.chest]\n" + SET, ""), ("seed = 17", "seed = 17\ndataset = 3")],
    "dataset is a list": [("[dataset.chest]", "[[dataset]]")],
    "a data set is a number": [("[dataset.chest]\n" + SET, "[dataset]\nchest = 3\n")],
    "a data set is a text": [("[dataset.chest]\n" + SET, '[dataset]\nchest = "stub-scans"\n')],
    "model is missing": [(TEXT[TEXT.index("[model]") : TEXT.index("[[stage]]")], "")],
    "model is a number": [(TEXT[TEXT.index("[model]") : TEXT.index("[[stage]]")], ""), ("seed = 17", "seed = 17\nmodel = 3")],
    "an unknown key of the model": [("bridge = {", "brigde = {")],
    "an encoder is a text": [('encoder = { use = "stub-eye" }', 'encoder = "stub-eye"')],
    "a view is missing": [('view = { use = "stub-plain" }\n', "")],
    "bfloat16 of the bridge": [('bridge = { use = "stub-line" }', 'bridge = { use = "stub-line" }\nbfloat16 = ["bridge"]')],
    "bfloat16 is a text": [('bridge = { use = "stub-line" }', 'bridge = { use = "stub-line" }\nbfloat16 = "bridge"')],
    "features is a number": [("seed = 17", "seed = 17\nfeatures = 3")],
    "features": [("[model]", '[features]\nprecision = "int8"\nmemory_gb = -1\nmemory_mb = 1\n\n[model]')],
    "stage is missing": [(TEXT[TEXT.index("[[stage]]") :], "")],
    "stage is an empty list": [(TEXT[TEXT.index("[[stage]]") :], ""), ("seed = 17", "seed = 17\nstage = []")],
    "stage is a number": [(TEXT[TEXT.index("[[stage]]") :], ""), ("seed = 17", "seed = 17\nstage = 3")],
    "stage is a list of numbers": [(TEXT[TEXT.index("[[stage]]") :], ""), ("seed = 17", "seed = 17\nstage = [3]")],
    "stage is a table": [(TEXT[TEXT.index("[[stage]]") :], '[stage]\nkind = "sft"\n')],
    # names of components
    "a data set that is not installed": [('"stub-scans"', '"stub-scan"')],
    "a data set that is like none": [('"stub-scans"', '"zzzzzz"')],
    "an encoder that is not installed": [('"stub-eye"', '"stub-eyes"')],
    "a language model that is not installed": [('"stub-words"', '"stub-word"')],
    "a task's component is not installed": [('use = "stub-ask"\n', 'use = "stub-aks"\n')],
    "a reward that is not installed": [('"stub-level"', '"stub-levels"')],
    "use is missing": [(SET, "cases = 3\n")],
    "use is a number": [(SET, "use = 3\n")],
    "use of a reward is missing": [('use = "stub-level"\n', "")],
    "use of an encoder is missing": [('encoder = { use = "stub-eye" }', "encoder = {}")],
    "use of the language model is missing": [('language = { use = "stub-words" }', "language = {}")],
    "a component of an installed package": [('"stub-scans"', '"evid-stub/stub-scans"')],
    "a component that an installed package has not": [('"stub-scans"', '"evid-stub/stub-scan"')],
    "a component of a package that is not installed": [('"stub-scans"', '"evid-elsewhere/brightness"')],
    "a component of the Hub that is not pinned": [('"stub-scans"', '"hub:owner/name@%s#scans"' % ("0" * 40))],
    "a component of the Hub without a commit": [('"stub-scans"', '"hub:owner/name#scans"')],
    "two packages have it": [('"stub-level"', '"stub-shared"')],
    "one of two packages that have it": [('"stub-level"', '"evid-stub-other/stub-shared"')],
    # broken packages
    "a component that cannot be imported": [('"stub-level"', '"stub-cracked"')],
    "a component that its module has not": [('"stub-level"', '"stub-not-there"')],
    "a component that cannot be called": [('"stub-level"', '"stub-not-callable"')],
    "an option that is a key of the core": [('"stub-level"', '"stub-greedy"')],
    "an option without a type": [('"stub-level"', '"stub-untyped"')],
    "an option whose type cannot be read": [('"stub-level"', '"stub-odd"')],
    "an option that stands twice": [('"stub-level"', '"stub-twice"')],
    "flat options of no dataclass": [('"stub-level"', '"stub-loose"')],
    # values of options
    "an integer is a text": [after(SET, 'cases = "4"')],
    "an integer is a float": [after(SET, "cases = 4.5")],
    "an integer is a whole float": [after(SET, "cases = 4.0")],
    "an integer is true": [after(SET, "cases = true")],
    "an integer is a list": [after(SET, "cases = [4]")],
    "an integer is a table": [after(SET, "cases = { a = 4 }")],
    "an integer below its bound": [after(SET, "cases = -4")],
    "a float below its bound": [after(SET, "share = -0.5")],
    "a float above its bound": [after(SET, "share = 1.5")],
    "a float at an open lower bound": [after(SET, "spacing_mm = 0")],
    "a float at an open upper bound": [after(SET, "spacing_mm = 100")],
    "a float is a text": [after(SET, 'share = "half"')],
    "a float is true": [after(SET, "share = true")],
    "a float is infinite": [after(SET, "share = inf")],
    "a float is no number": [after(SET, "share = nan")],
    "a float is a date": [after(SET, "share = 2024-01-01T00:00:00Z")],
    "a flag is a number": [after(SET, "are_new = 1")],
    "a flag is a text": [after(SET, 'are_new = "no"')],
    "a choice": [after(SET, 'mode = "chess"')],
    "a choice is a number": [after(SET, "mode = 3")],
    "a choice or a number": [after(SET, 'either = "atuo"')],
    "a text is a number": [after(SET, "title = 3")],
    "a text is too short": [after(SET, 'long = "a"')],
    "a text is too long": [after(SET, 'long = "abcde"')],
    "a path is a number": [after(SET, "folder = 3")],
    "a list is a text": [after(SET, 'tags = "a"')],
    "an entry of a list": [after(SET, 'tags = ["a", 3, "b", true]')],
    "a pair of three": [after(SET, "pair = [1, 2, 3]")],
    "a pair of one": [after(SET, "pair = [1]")],
    "a pair of texts": [after(SET, 'pair = ["a", "b"]')],
    "too few entries": [after(SET, "some = []")],
    "too many entries": [after(SET, "some = [1, 2, 3, 4]")],
    "a table of numbers": [after(SET, 'shares = { a = "b", c = -1 }')],
    "a table of numbers is a number": [after(SET, "shares = 3")],
    "an inner table is a number": [after(SET, "window = 3")],
    "a value of an inner table": [after(SET, 'window = { low_hu = "low", name = 3 }')],
    "an unknown key of an inner table": [after(SET, "window = { lows_hu = 3.0 }")],
    "a value in a list of tables": [after(SET, 'windows = [{ low_hu = 0 }, { high_hu = "a" }, 3]')],
    "a value that may be left out": [after(SET, "maybe = -3")],
    "a value that may be left out is a text": [after(SET, 'maybe = "a"')],
    "a list of lists": [after(SET, 'lists = [[1, 2], [3, "a"], 4]')],
    "a date where anything goes": [after(SET, "anything = 2024-01-01")],
    "a line inside a list of several lines": [after(SET, 'tags = [\n  "a",\n  3,\n]')],
    "an unknown option": [after(SET, "casses = 4")],
    "an unknown option that is like none": [after(SET, "zzzzzz = 4")],
    "an unknown option where there is none": [('{ use = "stub-line" }', '{ use = "stub-line", depth = 3 }')],
    "an option is missing": [(SET, 'use = "stub-needy"\nshare = 0.5\n')],
    "a flat option is missing": [(SET, 'use = "stub-needy"\ndepth = 3\n')],
    "values of flat options": [(SET, 'use = "stub-needy"\ndepth = 3\nshare = 1\nmost = 0\nnames = [3]\nreading = {}\njudge = { use = "stub-scorer", power = 0 }\n')],
    # components in options
    "a service that is not there": [after(REWARD, 'scorer = "jugde"')],
    "a service that is like none": [after(REWARD, 'scorer = "zzzzzz"')],
    "a service of another kind": [after(REWARD, 'reader = "judge"')],
    "a component's option is a number": [after(REWARD, "scorer = 3")],
    "a component's option names none": [after(REWARD, "scorer = {}")],
    "a component's option names one that is not installed": [after(REWARD, 'scorer = { use = "stub-scorers" }')],
    "an option of a component's option": [after(REWARD, 'scorer = { use = "stub-scorer", power = 0, pover = 3 }')],
    "a list of components is a table": [after(REWARD, 'others = { use = "stub-scorer" }')],
    "a list of components is a text": [after(REWARD, 'others = "judge"')],
    "entries of a list of components": [after(REWARD, 'others = [{ use = "stub-scorer", power = 3 }, "judge", { use = "stub-scorer", pover = 3 }, "nobody", 3, { use = "stub-scorers" }]')],
    # services
    "a service that no kind has": [('use = "stub-scorer"\n', 'use = "stub-nobody"\n')],
    "a service that two kinds have": [('use = "stub-scorer"\n', 'use = "stub-two-kinds"\n')],
    "a service of two kinds with its kind": [('use = "stub-scorer"\n', 'use = "stub-two-kinds"\nkind = "reader"\n')],
    "a service of a kind that is none": [('use = "stub-scorer"\n', 'use = "stub-scorer"\nkind = "encoder"\n')],
    "a service of a kind that is a number": [('use = "stub-scorer"\n', 'use = "stub-scorer"\nkind = 3\n')],
    "a service of a kind that has it not": [('use = "stub-scorer"\n', 'use = "stub-scorer"\nkind = "reader"\n')],
    "a service is a number": [('[service.judge]\nuse = "stub-scorer"', "[service]\njudge = 3")],
    "a service without use": [('use = "stub-scorer"\n', "power = 3\n")],
    "an option of a service": [('use = "stub-scorer"\n', 'use = "stub-scorer"\npover = 3\n')],
    # isolated components
    "isolated is a number": [after(REWARD, "isolated = 3")],
    "limits of an isolated component": [after(REWARD, "isolated = { time_limit_s = 0, memory_gb = 1e9, cpus = 3 }")],
    "an isolated component that asks for the policy": [('use = "stub-scorer"\n', 'use = "stub-reader"\nisolated = true\n')],
    "an isolated component with a service": [after(REWARD, 'isolated = true\nscorer = "judge"\nothers = ["judge"]')],
    "an isolated component in an isolated one": [after(REWARD, 'isolated = true\nscorer = { use = "stub-scorer", isolated = true }\nreader = { use = "stub-reader" }')],
    "isolated where that cannot be": [after(SET, "isolated = true")],
    # rewards and metrics
    "a weight below 0": [("weight = 0.5", "weight = -0.5")],
    "a weight is a text": [("weight = 0.5", 'weight = "much"')],
    "a weight without a bound": [("weight = 0.5", "weight = inf")],
    "every weight is 0": [("weight = 0.5", "weight = 0"), ('gate = "stub-judged"', "weight = 0")],
    "a gate is a number": [('gate = "stub-judged"', "gate = 3")],
    "a gate that is not above": [('gate = "stub-judged"', 'gate = "stub-juged"')],
    "a gate where nothing is above": [("weight = 0.5", 'gate = "stub-level"')],
    "a reward's name is a number": [("weight = 0.5", "name = 3")],
    "two rewards of one name": [('gate = "stub-judged"', 'name = "stub-judged"')],
    "reward is missing": [(TEXT[TEXT.index("[[stage.reward]]") : TEXT.index('\n[[stage]]\nkind = "evaluate"')], "")],
    "reward is a table": [(TEXT[TEXT.index("[[stage.reward]]") : TEXT.index('\n[[stage]]\nkind = "evaluate"')], '[stage.reward]\nuse = "stub-level"\n')],
    "reward is a list of texts": [(TEXT[TEXT.index("[[stage.reward]]") : TEXT.index('\n[[stage]]\nkind = "evaluate"')], 'reward = ["stub-level"]\n')],
    "an unknown key of a reward": [("weight = 0.5", "weigth = 0.5")],
    "a key of the stage in a reward": [after(REWARD, "prompts_per_step = 3")],
    "an option of a reward in its stage": [after(GRPO, 'reading = "lenient"')],
    "an option of a reward in another reward": [("weight = 0.5", "level = 0.5")],
    "metric is a text": [after(EVALUATE, 'metric = "stub-metric"')],
    "an unknown key of a metric": [after(EVALUATE, '[[stage.metric]]\nuse = "stub-metric"\nodrer = 3')],
    "a metric that is not installed": [after(EVALUATE, '[[stage.metric]]\nuse = "stub-metrics"')],
    "a metric's name is a number": [after(EVALUATE, '[[stage.metric]]\nuse = "stub-metric"\nname = 3')],
    "two metrics of one name": [after(EVALUATE, '[[stage.metric]]\nuse = "stub-metric"\n[[stage.metric]]\nuse = "stub-metric"')],
    "two metrics of names": [after(EVALUATE, '[[stage.metric]]\nuse = "stub-metric"\n[[stage.metric]]\nuse = "stub-metric"\nname = "b"')],
    # stages
    "a kind of stage that is not installed": [('kind = "grpo"', 'kind = "gpro"')],
    "a kind of stage is missing": [('kind = "evaluate"\n', "")],
    "a kind of stage is a number": [('kind = "evaluate"', "kind = 3")],
    "a kind of stage that is no stage": [('kind = "evaluate"', 'kind = "stub-no-stage"')],
    "an unknown key of a stage": [("steps = 4", "stepps = 4")],
    "an unknown key of a stage that is like none": [("steps = 4", "steps = 4\nzzzzzz = 1")],
    "a key of the top in a stage": [("steps = 4", "steps = 4\nseed = 3")],
    "a key of another stage": [("steps = 4", "steps = 4\nanswers_per_prompt = 3")],
    "a key of an inner table in its stage": [("steps = 4", "steps = 4\nrank = 3")],
    "a key of the model in a stage": [("steps = 4", 'steps = 4\nencoder = { use = "stub-eye" }')],
    "a key of the stage in a data entry": [('"direct", share = 0.5', '"direct", steps = 3')],
    "a key of the stage in a data set": [after(SET, "steps = 3")],
    "steps is missing": [("steps = 4\n", "")],
    "steps is 0": [("steps = 4", "steps = 0")],
    "data is missing": [('data = [{ dataset = "chest", task = "stub-ask", split = "test" }]\n', "")],
    "data is empty": [('data = [{ dataset = "chest", task = "stub-ask", split = "test" }]', "data = []")],
    "data is a text": [('data = [{ dataset = "chest", task = "stub-ask", split = "test" }]', 'data = "chest"')],
    "a data entry is a text": [('data = [{ dataset = "chest", task = "stub-ask", split = "test" }]', 'data = ["chest"]')],
    "a data entry without its data set": [('{ dataset = "chest", task = "stub-ask", split = "test" }', '{ task = "stub-ask" }')],
    "values of a data entry": [('"direct", share = 0.5', '"direct", share = 1.5, patients = 0, limit = -1, split = "tset", evaluation = 3')],
    "an unknown key of a data entry": [('"direct", share', '"direct", shere')],
    "a data set that the recipe has not": [('{ dataset = "chest", task = "direct"', '{ dataset = "chset", task = "direct"')],
    "a data set is a number in an entry": [('{ dataset = "chest", task = "direct"', '{ dataset = 3, task = "direct"')],
    "a task that is not there": [('task = "direct"', 'task = "driect"')],
    "a task is missing": [(', task = "direct"', "")],
    "a task asked twice": [(EVALUATE, 'split = "test" }, { dataset = "chest", task = "stub-ask" }]\n')],
    "a task that needs slice numbers": [('task = "direct"', 'task = "stub-ask-slice"')],
    "a task that has slice numbers": [('task = "direct"', 'task = "stub-ask-slice"'), ('"stub-plain"', '"stub-tagged"')],
    "a task without an evaluation": [('"stub-ask", split = "test"', '"stub-ask-nothing", split = "test"')],
    "an evaluation that is not installed": [('split = "test" }]', 'split = "test", evaluation = "stub-evaluations" }]')],
    "a training stage on the test split": [('"direct", share = 0.5', '"direct", split = "test"')],
    "a share where nothing is trained": [('split = "test" }]', 'split = "test", share = 0.5 }]')],
    "an arm's name": [("steps = 4", 'steps = 4\narm = "a b"')],
    "an arm is a number": [("steps = 4", "steps = 4\narm = 3")],
    "an arm without weights": [("steps = 4", 'steps = 4\narm = "longer"')],
    "an open key of an evaluation": [after(EVALUATE, 'resuce = true\nlabeler = 3\nsegmenter = "judge"')],
    "an option of an evaluation's component": [after(EVALUATE, 'segmenter = { use = "stub-segmenter", seed = 3 }\nrescue = 1')],
    "a segmenter that is not installed": [after(EVALUATE, 'segmenter = { use = "stub-segmenters" }')],
    # stages that train
    "train is a text": [first("sft", ""), ('train = ["bridge", "language"]\ndata = [\n', 'train = "bridge"\ndata = [\n')],
    "train is empty": [('train = ["bridge", "language"]\ndata = [\n', "train = []\ndata = [\n")],
    "train names a part that is none": [('train = ["bridge", "language"]\ndata = [\n', 'train = ["brigde", "language"]\ndata = [\n')],
    "train names a part twice": [('train = ["bridge", "language"]\ndata = [\n', 'train = ["bridge", "bridge", "language"]\ndata = [\n')],
    "a learning rate is 0": [("learning_rate = 2e-3", "learning_rate = 0")],
    "a learning rate is a text": [("learning_rate = 2e-3", 'learning_rate = "much"')],
    "a learning rate of a part is a text": [("bridge = 5e-4", 'bridge = "much"')],
    "learning rates of other parts": [("language = 1e-4", "encoder = 1e-4")],
    "no language model to train on": [('train = ["bridge", "language"]\ndata = [\n', 'train = ["bridge"]\ndata = [\n')],
    "an optimizer that is none": [("steps = 4", 'steps = 4\noptimizer = "adam"')],
    "momentum without Muon": [("steps = 4", "steps = 4\nmomentum = 0.9")],
    "momentum of 1": [("steps = 4", 'steps = 4\noptimizer = "muon"\nmomentum = 1')],
    "adapters of no rank": [("steps = 4", "steps = 4\nlora = { rank = 0, alhpa = 3 }")],
    "adapters are a number": [("steps = 4", "steps = 4\nlora = 3")],
    "adapters where the language model is not trained": [('train = ["bridge", "language"]\ndata = [{', 'train = ["bridge"]\nlora = { rank = 2 }\ndata = [{'), (", language = 1e-4", "")],
    "tools without a rollout": [("steps = 4", 'steps = 4\ntools = [{ use = "stub-zoom" }]')],
    "tools and a rollout": [("steps = 4", 'steps = 4\ntools = [{ use = "stub-zoom", tims = 3 }]\nrollout = { use = "stub-talk", turns = 0 }')],
    "tools are a table": [("steps = 4", 'steps = 4\ntools = { use = "stub-zoom" }')],
    "a rollout is a text": [("steps = 4", 'steps = 4\nrollout = "stub-talk"')],
    "a sampler that is not installed": [("steps = 2", 'steps = 2\nsampler = { use = "in-proces" }')],
    "a re-weighter that is not installed": [("steps = 4", 'steps = 4\nreweighter = { use = "uniforn" }')],
    "volumes": [("steps = 4", 'steps = 4\nvolumes = "white"')],
    "loss_per": [("steps = 4", 'steps = 4\nloss_per = "word"')],
    "answers_per_prompt": [("steps = 2", "steps = 2\nanswers_per_prompt = 1")],
    "max_failed": [("steps = 2", "steps = 2\nmax_failed = 1.0\ntemperature = 0\nshare_prompts = 3\nprompts_per_forward = -1")],
    "a replay without data": [("steps = 2", "steps = 2\nreplay = { weight = 1.0 }")],
    "a replay that asks nothing": [("steps = 2", "steps = 2\nreplay = { data = [{ dataset = 'chest' }], weight = 0 }")],
    "a replay of another data set": [("steps = 2", "steps = 2\nreplay = { data = [{ dataset = 'chset', task = 'stub-ask', split = 'test' }], row_per_step = 3 }")],
    "trl is a number": [("steps = 2", "steps = 2\ntrl = 3")],
    "a field of trl that the recipe says": [("steps = 2", "steps = 2\ntrl = { seed = 3, num_generations = 4 }")],
    "a field of trl that is the core's": [("steps = 4", "steps = 4\ntrl = { packing = true }")],
    "a field of trl without an effect": [("steps = 2", "steps = 2\ntrl = { use_vllm = true }")],
    "a field that trl has not": [("steps = 2", "steps = 2\ntrl = { bta = 0.1 }")],
    "a field of trl is a text": [("steps = 2", 'steps = 2\ntrl = { beta = "0.1" }')],
    "weights in bfloat16 are trained": [('bridge = { use = "stub-line" }', 'bridge = { use = "stub-line" }\nbfloat16 = ["language"]')],
    "products of weights in bfloat16": [('bridge = { use = "stub-line" }', 'bridge = { use = "stub-line" }\nbfloat16 = ["encoder"]'), ("steps = 2", 'steps = 2\ntrl = { bf16 = false, fsdp = "full_shard" }')],
    # fit
    "a fit of a component that is none": [first("sft", FIT % ("model.encodr", ""))],
    "a fit without a component": [first("sft", FIT.replace('component = "%s"\n', "") % "")],
    "a fit of a bridge": [first("sft", FIT % ("model.bridge", ""))],
    "a fit of a service that has none": [first("sft", FIT % ("service.judge", ""))],
    "a fit of what is in bfloat16": [first("sft", FIT % ("model.encoder", "")), ('bridge = { use = "stub-line" }', 'bridge = { use = "stub-line" }\nbfloat16 = ["encoder"]')],
    "options of a fit": [first("sft", FIT % ("model.encoder", 'options = { stepps = 3, steps = 0, most = 0, learning_rates = { a = "b" } }'))],
    "options of a fit are a number": [first("sft", FIT % ("model.encoder", "options = 3"))],
    "a fit below what was built on it": [first("evaluate", FIT % ("model.encoder", ""))],
    "a fit of what has weights": [first("evaluate", FIT % ("model.language", ""))],
    "a fit of what has none to fit": [first("sft", FIT % ("model.language", "")), ('"stub-words"', '"stub-published"')],
    "a fit of an isolated service": [first("sft", FIT % ("service.judge", "")), ('use = "stub-scorer"\n', 'use = "stub-scorer"\nisolated = true\n')],
    "a fit of a service in an arm": [first("sft", FIT % ("service.judge", 'arm = "b"')), ('use = "stub-scorer"\n', 'use = "stub-segmenter"\n')],
    "what a language model says of its table": [('"stub-words"', '"stub-words", width = 33')],
    "what a language model says of itself": [('"stub-words"', '"stub-words", width = 64')],
    "a published model without a revision": [('{ use = "stub-words" }', '{ id = "a/b" }')],
    "a published model and a folder": [('{ use = "stub-words" }', '{ id = "a/b", revision = "c", folder = "d" }')],
    # audit
    "an audit that is not installed": [first("evaluate", AUDIT + 'audit = "stub-listn"')],
    "options of an audit": [first("evaluate", AUDIT + 'audit = "stub-listen"\ncases = 0\nconditons = ["blank"]\nrescue = 3')],
    "a blind arm in an arm": [first("evaluate", AUDIT + 'blind_arm = true\narm = "b"')],
    "a blind arm where nothing is trained": [first("sft", AUDIT + "blind_arm = true")],
    "an evaluation of what has no weights": [first("sft", AUDIT)],
    # a stage of another package
    "keys of another package's stage": [first("evaluate", '[[stage]]\nkind = "stub-tally"\ndata = [{ dataset = "chest" }, { dataset = "chest" }]\nat_least = 0\nat_most = 3\ncasses = 3\nshare = 1.5\nwindow = { low_hu = "a" }')],
    "another package's stage": [first("evaluate", '[[stage]]\nkind = "stub-tally"\ndata = [{ dataset = "chest" }]\ncases = 3\nwindow = { name = "lung" }')],
    # several
    "mistakes all over": [("seed = 17", "seed = -17"), ('"stub-level"', '"stub-levl"'), ("steps = 4", "stepps = 4"), ("share = 0.5", "share = 1.5"), ("think = false", 'think = "no"')],
    "stages of one kind": [first("evaluate", '[[stage]]\nkind = "evaluate"\ndata = [{ dataset = "chest", task = "stub-ask", limit = -1 }]\n'), (EVALUATE, 'split = "test", limit = -2 }]\n')],
    "two data entries": [("share = 0.5", "share = 0.0"), ('{ dataset = "chest", task = "stub-ask" },', '{ dataset = "chests", task = "stub-aks" },')],
    # --set
    "--set without a value": ["seed"],
    "--set no TOML": ["name=x"],
    "--set a key that is none": ["stage.grpo.st eps=3"],
    "--set a stage that is not there": ["stage.grop.steps=3"],
    "--set one of too few stages": ["stage.grpo[1].steps=3"],
    "--set one of several stages": [first("evaluate", AUDIT.replace("audit", "evaluate")), "stage.evaluate.max_new_tokens=4"],
    "--set the second of several stages": [first("evaluate", AUDIT.replace("audit", "evaluate")), "stage.evaluate[1].max_new_tokens=0"],
    "--set a list's entry that is not there": ["stage.grpo.reward[5].weight=3"],
    "--set below a number": ["seed.x=3"],
    "--set below a value": ["stage.grpo.steps[0]=3"],
    "--set an entry of a table": ["dataset[0]=3"],
    "--set a wrong type": ['seed="a"'],
    "--set a wrong bound": ["stage.grpo.steps=-2"],
    "--set a wrong component": ['model.encoder={use="stub-eyes"}'],
    "--set an unknown key": ["stage.grpo.stepps=2"],
    "--set a whole table": ["stage.sft.lora={rank=0}"],
    "--set two mistakes, and one in the file": ["seed=-1", "sead=2", ("share = 0.5", "share = 1.5")],
    "--set in an arm": [first("evaluate", TEXT[TEXT.index("[[stage]]") : TEXT.index('\n[[stage]]\nkind = "grpo"')].replace("steps = 4", 'steps = 4\narm = "longer"')), "stage.longer.sft.steps=-1"],
    "--set a stage that an arm has not": [first("evaluate", TEXT[TEXT.index("[[stage]]") : TEXT.index('\n[[stage]]\nkind = "grpo"')].replace("steps = 4", 'steps = 4\narm = "longer"')), "stage.longer.evaluate.max_new_tokens=4"],
    "--set a right value": ["stage.grpo.reward[0].weight=0.25", "stage.grpo.lora={rank=4}"],
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the stub package, first on the path, and a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = installed(tmp_path_factory.mktemp("site"))
        patch.syspath_prepend(folder)
        patch.setenv("EVID_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder
        for name in ("evid_stub", "evid_stub_cracked"):
            sys.modules.pop(name, None)


def installed(folder):
    """Install the stub package, and another that offers one of its names."""
    (folder / "evid_stub.py").write_text((HERE / "stub_components.py").read_text("utf-8"))
    (folder / "evid_stub_cracked.py").write_text("import no_such_module\n")
    other = "[evidcore.reward]\nstub-shared = evid_stub:Level\n"
    tables = [
        f"[evidcore.{kind}]\n" + re.sub(r"(\S+?):(_cracked)?:?(\w+) ?", r"\1 = evid_stub\2:\3\n", names)
        for kind, names in OFFERED.items()
    ]
    for name, points in {"evid-stub": "".join(tables), "evid-stub-other": other}.items():
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points)
    return folder


def without_place(text, folder):
    """Return a text without what hangs on the machine, and on which other packages are installed."""
    text = text.replace(str(folder), "<folder>").replace(str(RECIPES.parent), "<repository>")
    text = re.sub(r"(Installed|Known|Views that do): [^.;]*", r"\1: …", text)
    text = re.sub(r"(stage\S*\.kind: must be one of ).*?(?=, got)", r"\1…", text)
    return re.sub(r" at 0x[0-9a-f]+", " at …", text)


def told(changes, folder):
    """Return what is printed of a mistake: where nothing was read before, and where that is different, again."""
    text = TEXT
    pairs = [change for change in changes if not isinstance(change, str)]
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    path = folder / "golden.toml"
    path.write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVID_CACHE", cache)
        overrides = [change for change in changes if isinstance(change, str)]
        cold, warm = (answer(path, overrides, folder) for _ in range(2))
    return cold if cold == warm else f"{cold}\nagain, {warm}"


def answer(path, overrides, folder):
    """Return the message, or the resolved recipe's lines that the base has not."""
    try:
        recipe = load(path, overrides)
    except Exception as cause:  # what is no EvidError would be a mistake of ours
        kind = type(cause).__name__ if isinstance(cause, EvidError) else f"a crash, {type(cause).__name__}"
        return f"{kind}: {without_place(str(cause), folder)}"
    lines = changed(_base(folder), resolved(recipe, folder))
    return "\n".join(["nothing wrong", *lines])


@functools.cache
def _base(folder):
    path = folder / "base.toml"
    path.write_text(TEXT, encoding="utf-8")
    return resolved(load(path), folder)


def changed(old, new):
    """Return the lines that differ, marked - and +."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def resolved(recipe, folder):
    """Return the resolved copy, without the numbers of the lines that values came from."""
    return without_place(re.sub(r"  # line \d+$", "  # given", to_toml(recipe), flags=re.MULTILINE), folder)


def of_ablation(path):
    """Return a hash of the resolved recipe of each arm of an ablation."""
    ablation = load_ablation(path)
    recipes = {arm.name: ablation.cell_recipe(arm.name, ablation.seeds[0]) for arm in ablation.arms}
    texts = {name: resolved(recipe, RECIPES) for name, recipe in recipes.items()}
    hashes = [f"{name} {hashlib.sha256(text.encode()).hexdigest()}" for name, text in texts.items()]
    return "\n".join([f"== {path.name}", *hashes])


def sections(text):
    """Return the parts of a golden file by their headings."""
    return {
        part.partition("\n")[0]: part.partition("\n")[2].strip("\n")
        for part in ("\n" + text).split("\n== ")[1:]
    }


def committed(name):
    return sections((HERE / name).read_text(encoding="utf-8"))


def place_of(path):
    return HERE / "resolved" / path.relative_to(RECIPES)


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: str(path.relative_to(RECIPES)))
def test_a_recipe_resolves_to_what_is_committed(path, site):
    assert resolved(load(path), RECIPES) == place_of(path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", ABLATIONS, ids=lambda path: path.stem)
def test_the_arms_of_an_ablation_resolve_to_what_is_committed(path, site):
    assert of_ablation(path).partition("\n")[2] == committed("ablations.txt")[path.name]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_the_committed_words(name, site):
    assert told(MISTAKES[name], site) == committed("mistakes.txt")[name]


def test_a_stage_of_another_package_stands_in_the_schema_and_in_a_resolved_copy(site):
    stages = {one["properties"]["kind"]["const"]: one for one in recipe_schema()["$defs"]["stage"]["anyOf"]}
    assert stages["stub-tally"]["properties"]["at_least"]["minimum"] == 1
    assert "stub-no-stage" not in stages
    ((old, new),) = MISTAKES["another package's stage"]
    (site / "tally.toml").write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    recipe = load(site / "tally.toml")
    (site / "again.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert load(site / "again.toml") == recipe


def test_every_committed_file_is_compared():
    files = {path for path in (HERE / "resolved").rglob("*.toml")}
    assert files == {place_of(path) for path in WHOLE}
    assert committed("mistakes.txt").keys() == MISTAKES.keys()
    assert committed("ablations.txt").keys() == {path.name for path in ABLATIONS}


def write():
    """Write every file anew."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EVID_CACHE"] = str(Path(folder) / "cache")
        site = Path(folder) / "site"
        site.mkdir()
        sys.path.insert(0, str(installed(site)))
        for path in WHOLE:
            place_of(path).parent.mkdir(parents=True, exist_ok=True)
            place_of(path).write_text(resolved(load(path), RECIPES), encoding="utf-8")
        (HERE / "ablations.txt").write_text("\n\n".join(map(of_ablation, ABLATIONS)) + "\n", encoding="utf-8")
        texts = [f"== {name}\n{told(changes, site)}" for name, changes in MISTAKES.items()]
        (HERE / "mistakes.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    write()
