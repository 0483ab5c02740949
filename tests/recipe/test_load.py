# ruff: noqa: E501  # a mistake a row
import tomllib
from pathlib import Path

import pytest

from evidcore.cli.show import recipe_schema
from evidcore.contracts import Stage
from evidcore.errors import RecipeError
from evidcore.evaluate.stage import Evaluate
from evidcore.recipe import load, to_toml
from evidcore.registry import offers
from evidcore.train.grpo import Grpo
from evidcore.train.sft import Sft


def mistakes(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load(path, overrides)
    return str(caught.value).splitlines()


def test_a_recipe_is_read_with_every_default(write):
    recipe = load(write())
    sft, grpo, evaluate = recipe.stages
    assert isinstance(sft, Sft)
    assert isinstance(grpo, Grpo)
    assert isinstance(evaluate, Evaluate)
    assert (recipe.name, recipe.seed, recipe.stage_name(1)) == ("tiny", 17, "02-grpo")
    assert sft.data[1].share == 0.5
    assert sft.reweighter == {"use": "uniform"}
    assert grpo.reward[1] == {
        "use": "choice-accuracy",
        "weight": 1.0,
        "gate": "format",
        "name": "",
        "reading": "strict",
    }
    assert grpo.trl == {
        "loss_type": "grpo", "beta": 0.0, "epsilon": 0.2, "scale_rewards": "group",
        "use_bias_correction_kl": False,
    }  # fmt: skip
    assert recipe.services == {"judge": {"kind": "scorer", "use": "findings-f1", **recipe.services["judge"]}}
    assert recipe.tasks["direct"]["think"] is False
    assert recipe.tasks["choice"]["think"] is True


def _defaults(text):
    return [line for line in text.splitlines() if line.endswith("  # default")]


def test_the_resolved_copy_loads_to_the_same_recipe_from_anywhere(write, tmp_path):
    recipe = load(
        write(),
        [
            "stage.grpo.reward[0].weight=0.25",
            "stage.sft.lora={rank=4}",
            "stage.grpo.lora={rank=4}",
            "features={precision='float16', memory_gb=4}",
            "model.bfloat16=['encoder', 'language']",
            "stage.grpo.replay={data=[{dataset='chest',task='report',limit=9}],weight=2}",
        ],
    )
    assert recipe.stages[1].replay.data[0].limit == 9
    assert (recipe.features.precision, recipe.features.memory_gb) == ("float16", 4.0)
    assert recipe.model.bfloat16 == ("encoder", "language")
    assert recipe.stages[1].trl["bf16"] is True
    copy = tmp_path / "elsewhere" / "resolved.toml"
    copy.parent.mkdir()
    copy.write_text(to_toml(recipe), encoding="utf-8")
    again = load(copy)
    assert again == recipe
    assert again.folder == tmp_path.resolve()
    assert sorted(_defaults(to_toml(again))) == sorted(_defaults(to_toml(recipe)))
    assert "observers = []  # default" in _defaults(to_toml(recipe))


def test_the_resolved_copy_says_where_each_value_came_from(write):
    text = to_toml(load(write(), ["stage.grpo.steps=9"]))
    assert "steps = 9  # command line" in text
    assert "steps = 4  # line 28" in text
    assert "max_new_tokens = 256  # default" in text
    assert "beta = 0.0  # default" in text


def test_the_tables_of_a_file_give_its_recipe_and_their_mistakes_have_no_line(write, monkeypatch):
    path = write()
    monkeypatch.chdir(path.parent)
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    assert load(tables, ["seed=3"]) == load(path, ["seed=3"])
    tables["stage"][1]["steps"] = -2
    first, second = mistakes(tables)
    assert first == "recipe given as a dict: 1 mistake"
    assert second.startswith("  stage.grpo.steps: ")
    assert mistakes(tables, "stage.grpo.steps=-3")[1].startswith("  command line, stage.grpo.steps: ")


def test_every_mistake_is_reported_at_once_with_its_line_in_order(write):
    path = write(
        ("seed = 17", "seed = -17"),
        ('use = "choice-accuracy"', 'use = "choice-acuracy"'),
        ("steps = 4", "stepps = 4"),
        ("share = 0.5", "share = 1.5"),
        ("think = false", 'think = "no"'),
    )
    lines = mistakes(path)
    assert lines[0] == f"{path}: 6 mistakes"
    assert lines[1] == "  line 3, seed: must be greater than or equal to 0, got -17."
    assert lines[2] == "  line 13, task.direct.think: must be a valid boolean, got 'no'."
    assert lines[3] == "  line 21, stage.sft: steps is missing, and it has no default."
    assert lines[4] == "  line 26, stage.sft.data[1].share: must be less than or equal to 1, got 1.5."
    assert lines[5] == "  line 28, stage.sft.stepps: unknown key. Did you mean 'steps'?"
    assert lines[6].startswith(
        "  line 41, stage.grpo.reward[1].use: no reward is called 'choice-acuracy'. "
        "Did you mean 'choice-accuracy'? Installed: "
    )


FIT = '[[stage]]\nkind = "fit"\ncomponent = "model.encoder"\ndata = [{ dataset = "chest"%s }]\n\n'
REPLAY = '[stage.replay]\ndata = [{ dataset = "chest", task = "report"%s }]\n[[stage.reward]]\nuse = "format"'
TEST = ', split = "test"'
TRAINING = {
    "stage.fit.data[0]": ('[[stage]]\nkind = "sft"', FIT + '[[stage]]\nkind = "sft"'),
    "stage.fit.data[0] of the language": (
        '[[stage]]\nkind = "sft"', FIT.replace("model.encoder", "model.language") + '[[stage]]\nkind = "sft"',
    ),
    "stage.sft.data[1]": ('"direct", share = 0.5', '"direct"%s'),
    "stage.grpo.data[0]": ('"choice" }]\nsteps = 2', '"choice"%s }]\nsteps = 2'),
    "stage.grpo.replay.data[0]": ('[[stage.reward]]\nuse = "format"', REPLAY),
}  # fmt: skip


@pytest.mark.parametrize("entry", TRAINING)
def test_nothing_that_trains_may_see_the_test_split(write, entry):
    old, new = TRAINING[entry]
    load(write((old, new % "")))
    where = entry.partition(" of ")[0]
    complaint = f"{where}.split: a stage that trains may not see the test split, got 'test'. Use 'train'."
    assert [complaint] == [line.partition(", ")[2] for line in mistakes(write((old, new % TEST)))[1:]]


def test_every_stage_that_leaves_weights_is_one_that_trains():
    for offer in offers("stage"):
        kind = offer.load()
        leaves_weights = kind.output is not Stage.output
        assert kind.traits.trains == leaves_weights, offer.name
        assert kind.traits.trains != kind.traits.measures, offer.name


def test_rewards_that_all_weigh_nothing_are_refused(write):
    weightless = ('gate = "format"', 'gate = "format"\nweight = 0')
    load(write(weightless))
    _, mistake = mistakes(write(weightless, ("weight = 0.5", "weight = 0.0")))
    assert "stage.grpo.reward: every weight is 0, so nothing would be learnt." in mistake


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[[stage.reward]]\nuse = \"format\"", "[[stage.reward]]\nprompts_per_step = 3\nuse = \"format\"",
         "line 38, stage.grpo.reward[0].prompts_per_step: unknown key. Keys here: none. "
         "It belongs in a grpo stage, above its [[stage.…]] tables."),
        ("steps = 4", "steps = 4\nseed = 3",
         "line 29, stage.sft.seed: unknown key. It belongs in the top of the file, above every [section]."),
        ("steps = 2", 'steps = 2\nreading = "lenient"',
         "stage.grpo.reading: unknown key. It is an option of stage.grpo.reward[1] (choice-accuracy)."),
        ('dataset = "chest", task = "report"', 'dataset = "cest", task = "report"',
         "line 25, stage.sft.data[0].dataset: no dataset is called 'cest'. Did you mean 'chest'? "
         "This recipe has: [dataset.chest]."),
        ('task = "report"', 'task = "reprot"',
         "line 25, stage.sft.data[0].task: no task is called 'reprot'. Did you mean 'report'?"),
        ('dataset = "chest", task = "report"', 'dataset = "chest"',
         "line 25, stage.sft.data[0]: task is missing: a sft stage asks something about each case."),
        ('task = "report"', 'task = "report", split = "test"',
         "line 25, stage.sft.data[0].split: a stage that trains may not see the test split, got 'test'."),
        ('split = "test"', 'split = "tset"', "data[0].split: must be 'train', 'validation' or 'test', got 'tset'."),
        ('split = "test"', 'split = "test", share = 0.5', "share: only stages that train mix their data, got 0.5."),
        ('{ dataset = "chest", task = "choice", split = "test" }',
         '{ dataset = "chest", task = "choice" }, { dataset = "chest", task = "choice", split = "test" }',
         "stage.evaluate.data[1].task: 'choice' is asked above too, and a stage's results are told apart by"),
        ("steps = 4", 'steps = 4\ntools = [{ use = "crop" }]',
         "stage.sft.tools: are called by a rollout, and none is named. Write rollout = { use = 'tool-call' }."),
        ('gate = "format"', 'gate = "fromat"',
         "line 42, stage.grpo.reward[1].gate: must be a reward above this one, got 'fromat'. "
         "Did you mean 'format'? Above: format."),
        ('gate = "format"', 'name = "format"', "line 40, stage.grpo.reward[1]: a second reward is called 'format'."),
        ('split = "test" }]', 'split = "test" }]\n[[stage.metric]]\nuse = "rouge"',
         "line 48, stage.evaluate.metric[0].use: no metric is called 'rouge'. Did you mean 'rouge-l'?"),
        ('split = "test" }]', 'split = "test" }]\n[[stage.metric]]\nuse = "bleu"\ntokenise = "13a"',
         "line 49, stage.evaluate.metric[0].tokenise: unknown key. Did you mean 'tokenize'?"),
        ('split = "test" }]', 'split = "test" }]\n[[stage.metric]]\nuse = "bleu"\nname = 3',
         "line 49, stage.evaluate.metric[0].name: must be a valid string, got 3."),
        ('split = "test" }]', 'split = "test" }]\n[[stage.metric]]\nuse = "bleu"\n[[stage.metric]]\nuse = "bleu"',
         "line 49, stage.evaluate.metric[1]: metric 'bleu' comes twice under one name."),
        ('split = "test" }]', 'split = "test" }]\nmetric = "bleu"',
         "line 47, stage.evaluate.metric: must be a list of metric tables such as [{ use = '…' }], got 'bleu'."),
        ('split = "test" }]', 'split = "test" }]\nlabeler = { use = "negation-rule" }',
         "line 47, stage.evaluate.labeler.use: no labeler is called 'negation-rule'. Did you mean 'negation-rules'?"),
        ('kind = "evaluate"', 'kind = "evalute"',
         "line 45, stage.evalute.kind: must be one of audit, evaluate, fit, grpo, sft, got 'evalute'. Did you mean 'evaluate'?"),
        ('train = ["bridge", "language"]\ndata = [\n', 'train = ["bridge"]\ndata = [\n',
         "line 21, stage.sft: the language model has no weights, and this stage does not train it."),
        ("language = 1e-4", "encoder = 1e-4",
         "line 36, stage.grpo.learning_rate: must have the keys of train (bridge, language) and no other, "
         "got bridge, encoder."),
        ('{ use = "tiny" }', '{ use = "tiny", id = "a/b" }',
         "line 16, model.language.id: unknown key. Keys here: heads, layers, ordered_numbers, width."),
        ('{ use = "tiny" }', '{ id = "a/b" }', "line 16, model.language: revision is missing"),
        ('{ use = "tiny" }', '{ id = "a/b", folder = "c" }',
         "line 16, model.language: must have exactly one of id and folder, got id and folder."),
        ('{ use = "tiny" }', '{}', "line 16, model.language: must have exactly one of id and folder, got none."),
        ('{ use = "tiny" }', '{ use = "tny" }',
         "line 16, model.language.use: no language is called 'tny'. Did you mean 'tiny'? Installed: pretrained, tiny."),
        ('split = "test" }]', 'evaluation = "choise", split = "test" }]',
         "line 46, stage.evaluate.data[0].evaluation: no evaluation is called 'choise'. Did you mean 'choice'?"),
        ('encoder = { use = "vit3d" }', 'encoder = "vit3d"',
         "line 18, model.encoder: must be a table that names a component, { use = '…' }, got 'vit3d'."),
        ("weight = 0.5", "weight = inf", "line 39, stage.grpo.reward[0].weight: must be a finite number"),
        ('name = "tiny"', 'name = "a/b"', "line 2, name: must be letters, digits,"),
        ("schema = 1", "schema = 2", "line 1, schema: must be 1, got 2."),
        ('use = "findings-f1"', 'use = "findings-f2"', "line 9, service.judge.use: must name one component of"),
        ("steps = 2", "steps = 2\ntrl = { seed = 3 }", "stage.grpo.trl.seed: the recipe says it with `seed`"),
        ("steps = 4", "steps = 4\nlora = { rank = 0 }", "stage.sft.lora.rank: must be greater than or equal to 1, got 0."),
        ("steps = 2", "steps = 2\nreplay = { data = [{ dataset = 'chest' }] }",
         "stage.grpo.replay.data[0]: task is missing: a grpo stage asks something about each case."),
        ("steps = 2", "steps = 2\nreplay = { data = [{ dataset = 'chset', task = 'report', split = 'test' }] }",
         "stage.grpo.replay.data[0].dataset: no dataset is called 'chset'. Did you mean 'chest'?"),
        ("steps = 2", "steps = 2\nreplay = { data = [{ dataset = 'chest', task = 'report' }], weight = 0 }",
         "stage.grpo.replay.weight: must be greater than 0, got 0."),
        ("steps = 4", "steps = 4\nmomentum = 0.9", "stage.sft.momentum: is Muon's. Leave it out, or write optimizer = 'muon'"),
        ('train = ["bridge", "language"]\ndata = [\n', 'train = ["bridge", "bridge", "language"]\ndata = [\n',
         "stage.sft.train: names a part twice, got ['bridge', 'bridge', 'language']."),
        ('train = ["bridge", "language"]\ndata = [\n', 'train = ["brigde", "language"]\ndata = [\n',
         "stage.sft.train[0]: must be 'encoder', 'bridge' or 'language', got 'brigde'."),
        ('train = ["bridge", "language"]\ndata = [\n', 'train = []\ndata = [\n',
         "stage.sft.train: must name at least one of encoder, bridge and language, got []."),
        ("{ bridge = 5e-4, language = 1e-4 }", "{ bridge = 5e-4 }",
         "stage.grpo.learning_rate: must have the keys of train (bridge, language) and no other, got bridge."),
        ('train = ["bridge", "language"]\ndata = [{', 'train = ["bridge"]\nlora = { rank = 2 }\ndata = [{',
         "stage.grpo.lora: adapts the language model, which is not in train."),
        ("steps = 2", "steps = 2\nanswers_per_prompt = 1",
         "stage.grpo.answers_per_prompt: must be greater than or equal to 2, got 1."),
        ("steps = 4", "steps = 4\ntrl = { packing = true }", "stage.sft.trl.packing: it belongs to the core"),
        ('use = "phantom-chest"', 'use = "phantom-chest"\nprevalance = 3', "line 7, dataset.chest.prevalance: unknown key."),
        ('seed = 17', 'seed = 17\nobservers = ["loud"]', "line 4, observers[0]: no observer is called 'loud'."),
        ('bridge = { use = "projection" }', 'bridge = { use = "projection" }\nbfloat16 = ["bridge"]',
         "model.bfloat16[0]: must be 'encoder' or 'language', got 'bridge'."),
        ('bridge = { use = "projection" }', 'bridge = { use = "projection" }\nbfloat16 = ["language"]',
         "stage.sft.train: trains the language, and weights that model.bfloat16 names are too coarse for small steps. "
         "Take 'language' out here or there, or train adapters (lora)."),
        ('bridge = { use = "projection" }', 'bridge = { use = "projection" }\nbfloat16 = ["encoder"]\n[[stage]]\n'
         'kind = "fit"\ncomponent = "model.encoder"\ndata = [{ dataset = "chest" }]',
         "stage.fit.component: trains the encoder, and weights that model.bfloat16 names are too coarse for small steps. "
         "Take 'encoder' out here or there."),
        ('bridge = { use = "projection" }\n\n[[stage]]\nkind = "sft"\n',
         'bridge = { use = "projection" }\nbfloat16 = ["encoder"]\n\n[[stage]]\nkind = "sft"\ntrl = { bf16 = false }\n',
         "stage.sft.trl.bf16: weights that model.bfloat16 names are multiplied in bfloat16, and whole in each process, "
         "got False. Leave it out, or model.bfloat16."),
        ('bridge = { use = "projection" }\n\n[[stage]]\nkind = "sft"\n',
         'bridge = { use = "projection" }\nbfloat16 = ["encoder"]\n\n[[stage]]\nkind = "sft"\ntrl = { fsdp = "full_shard" }\n',
         "stage.sft.trl.fsdp: weights that model.bfloat16 names are multiplied in bfloat16, and whole in each process, "
         "got 'full_shard'."),
        ('bridge = { use = "projection" }', 'bridge = { use = "residual-alinment" }', "no bridge is called 'residual-alinment'."),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_line_value_and_remedy(write, old, new, complaint):
    found = mistakes(write((old, new)))
    assert any(complaint in line for line in found), "\n".join(found)


def test_a_stage_may_not_fit_what_a_later_stage_was_built_on(write):
    fit = '[[stage]]\nkind = "fit"\ncomponent = "model.encoder"\ndata = [{ dataset = "chest" }]\n\n[[stage]]\nkind = "ev'
    found = mistakes(write(('[[stage]]\nkind = "ev', fit)))
    assert "stage.fit.component: model.encoder would be trained anew below a stage" in found[1]


def test_the_options_of_a_fit_are_those_of_the_components_fit(write):
    fit = '[[stage]]\nkind = "fit"\ncomponent = "model.encoder"\ndata = [{ dataset = "chest" }]\noptions = { stepps = 3 }\n'
    found = mistakes(write(('[[stage]]\nkind = "sft"', fit + '\n[[stage]]\nkind = "sft"')))
    assert "line 25, stage.fit.options.stepps: unknown key. Did you mean 'steps'?" in found[1]


def test_broken_toml_is_named_with_its_line(write):
    found = mistakes(write(("steps = 4", "steps = = 4")))
    assert found[1] == "  line 28, not TOML: Invalid value, in 'steps = = 4'."
    assert "not TOML: Cannot overwrite a value" in mistakes(write(("seed = 17", 'seed = 17\nname = "b"')))[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deep = " + "[" * 2000 + "]" * 2000, "lists nest too deep, or a number has over 4300 digits"),
        ("long = " + "9" * 5000, "lists nest too deep, or a number has over 4300 digits"),
        (".".join(["a"] * 20_000) + " = 1", "a key has more than 50 parts"),
        (".".join(['"a b"'] * 51) + " = 1", "a key has more than 50 parts"),
    ],
    ids=["nested", "digits", "parts", "quoted"],
)
def test_toml_that_nobody_writes_is_told_in_a_sentence(write, line, said):
    path = write(("seed = 17", f"seed = 17\n{line}"))
    with pytest.raises(RecipeError, match=f"^{path}: not TOML that can be read: {said}\\.$"):
        load(path)
    with pytest.raises(RecipeError, match="is not a TOML value"):
        load(write(), [f"seed={'[' * 2000}"])


def test_a_byte_order_mark_is_passed_over(write):
    path = write()
    marked = path.with_name("marked.toml")
    marked.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load(marked).stages == load(path).stages


def test_a_missing_file_is_answered_with_its_nearest_neighbour(write):
    path = write()
    with pytest.raises(RecipeError, match=r"tinny.toml: no such file. Did you mean 'tiny.toml'\?"):
        load(path.with_name("tinny.toml"))
    with pytest.raises(RecipeError, match="cannot be read as UTF-8 text"):
        load(Path("/"))


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ("seed", "command line, --set seed: must read path=value"),
        ("name=x", "'x' is not a TOML value; a text needs quotes: 'name=\"x\"'."),
        ("stage.grop.steps=3", "the recipe has no grop stage; it has evaluate, grpo, sft."),
        ("stage.grpo[1].steps=3", "the recipe has 1 grpo stages, counted from 0, got [1]."),
        ("stage.grpo.reward[5].weight=3", "there is no stage[1].reward[5] in the recipe."),
        ("stage.grpo.steps=0", "command line, stage.grpo.steps: must be greater than or equal to 1, got 0."),
        ("stage.grpo.stepz=0", "command line, stage.grpo.stepz: unknown key. Did you mean 'steps'?"),
        ("a b=3", "'a b' is not a key"),
    ],
)
def test_a_mistake_on_the_command_line_says_so(write, item, complaint):
    assert complaint in mistakes(write(), item)[1]


def test_overrides_reach_every_place(write):
    recipe = load(
        write(),
        [
            "stage.grpo.steps=7",
            "stage[0].steps = 8",
            "stage.grpo.trl={beta=0.0}",
            "dataset.chest.seed=3",
            "seed=4",
        ],
    )
    assert (recipe.stages[1].steps, recipe.stages[0].steps, recipe.seed) == (7, 8, 4)
    assert recipe.stages[1].trl["beta"] == 0.0
    assert recipe.datasets["chest"]["seed"] == 3
    assert recipe.overrides[0] == "stage.grpo.steps=7"


def test_a_stage_kind_that_occurs_twice_needs_its_number(write):
    twice = write(
        ('kind = "evaluate"', 'kind = "sft"\ntrain = ["bridge"]\nsteps = 1\nlearning_rate = 1.0'),
        (', split = "test"', ""),
    )
    assert (
        "the recipe has 2 sft stages; say which: stage.sft[0], stage.sft[1]."
        in mistakes(twice, "stage.sft.steps=3")[1]
    )
    assert load(twice, ["stage.sft[1].steps=3"]).stages[2].steps == 3


def test_stages_of_an_arm_are_counted_in_their_arm(write):
    file = write(
        (
            '[[stage]]\nkind = "evaluate"',
            '[[stage]]\nkind = "sft"\narm = "longer"\ntrain = ["bridge"]\nsteps = 1\nlearning_rate = 1.0\n'
            'data = [{ dataset = "chest", task = "choice" }]\n[[stage]]\nkind = "evaluate"',
        ),
    )
    recipe = load(file, ["stage.sft.steps=3", "stage.longer.sft.steps=5"])
    assert [stage.steps for stage in recipe.stages if stage.kind == "sft"] == [3, 5]
    said = mistakes(file, "stage.longer.evaluate.probe=true")[1]
    assert "the arm 'longer' has no evaluate stage; it has sft." in said
    assert "the recipe has no longer stage" in mistakes(file, "stage.longer=3")[1]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that puts a package with one component of this text on `sys.path`."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def put(package, kind, name, body):
        module = package.replace("-", "_")
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[evidcore.{kind}]\n{name} = {module}:It\n")
        (folder / f"{module}.py").write_text(body)

    return put


def test_a_task_that_needs_slice_tags_is_refused_on_a_view_without(write, install):
    body = "from evidcore.builtin.choice import Choice\nclass It(Choice):\n    needs_slice_tags = True\n"
    install("evid-tags", "task", "which-slice", body)
    found = mistakes(write(('task = "choice", split', 'task = "which-slice", split')))
    assert found[1] == (
        "  line 46, stage.evaluate.data[0].task: task 'which-slice' asks for slice numbers, but view 'volume' "
        "does not show any. Views that do: slices."
    )
    load(write(('task = "choice", split', 'task = "which-slice", split'), ('"volume"', '"slices"')))


def test_a_name_that_two_packages_have_is_refused_with_both_names(write, install):
    for package in ("evid-twin", "evid-other"):
        install(package, "reward", "shape", "from evidcore.builtin.rewards import Format as It\n")
    found = mistakes(write(('use = "format"', 'use = "shape"'), ('gate = "format"', 'gate = "shape"')))
    assert "line 38, stage.grpo.reward[0].use: 2 installed packages have a reward called 'shape'." in found[1]
    assert "Write 'evid-other/shape' or 'evid-twin/shape'." in found[1]
    install("evid-claims", "reward", "format", "from evidcore.builtin.rewards import Format as It\n")
    assert load(write()).stages[1].reward[0]["use"] == "format"
    recipe = load(write(('use = "format"', 'use = "evid-claims/format"')))
    assert recipe.stages[1].reward[0]["use"] == "evid-claims/format"


def test_a_broken_plugin_stops_only_the_recipe_that_names_it(write, install):
    install("evid-cracked", "reward", "cracked", "import no_such_module\n")
    load(write())
    found = mistakes(write(('use = "format"', 'use = "cracked"'), ('gate = "format"', 'gate = "cracked"')))
    assert (
        "reward[0].use: reward 'cracked' from evid-cracked 1.0 could not be imported: ModuleNotFoundError"
        in found[1]
    )


def test_a_package_that_nobody_knows_is_not_recommended(write):
    found = mistakes(
        write(('use = "format"', 'use = "evid-elsewhere/brightness"'), ('gate = "format"\n', ""))
    )
    assert "'evid-elsewhere/brightness'. No package 'evid-elsewhere' is known here; " in found[1]


LAST = 'task = "choice", split = "test" }]'
ASKED_REPORTS = 'task = "report", split = "test" }]'
REPORTS = (LAST, ASKED_REPORTS)


def test_an_evaluate_stage_has_the_metrics_that_it_names(write):
    stage = load(write(REPORTS)).stages[-1]
    assert stage.options["metric"] == []
    named = '[[stage.metric]]\nuse = "scorer"\nname = "words"\nscorer = "judge"'
    own = load(write((LAST, f"{ASKED_REPORTS}\n{named}"))).stages[-1]
    assert own.options["metric"] == [{"use": "scorer", "name": "words", "scorer": "judge"}]


def test_a_resolved_recipe_keeps_its_metrics(write, tmp_path):
    named = '[[stage.metric]]\nuse = "scorer"\nscorer = { use = "token-f1" }'
    for given in (named, "metric = []"):
        recipe = load(write((LAST, f"{ASKED_REPORTS}\n{given}")))
        (tmp_path / "again.toml").write_text(to_toml(recipe))
        assert load(tmp_path / "again.toml").stages == recipe.stages


def test_a_stage_has_the_keys_of_its_own_evaluations_alone(write):
    path = write((LAST, ASKED_MASKS + '\nmetric = [{ use = "bleu" }]'), SLICES)
    assert mistakes(path)[1].startswith("  line 47, stage.evaluate.metric: unknown key. ")
    both = 'task = "choice", split = "test" }, { dataset = "chest", task = "report", split = "test" }]'
    assert load(write((LAST, both))).stages[-1].options.keys() == {"labeler", "metric", "rescue"}


GROWER = ("[service.judge]", '[service.grower]\nuse = "region-growing"\n\n[service.judge]')
ASKED_MASKS = 'task = "reasoning-segmentation", split = "test" }]'
SLICES = ('"volume"', '"slices"')


def test_a_segmentation_grows_regions_unless_the_stage_names_a_segmenter_or_a_service(write, tmp_path):
    assert load(write((LAST, ASKED_MASKS), SLICES)).stages[-1].options["segmenter"]["use"] == "region-growing"
    for given in ('segmenter = "grower"', 'segmenter = { use = "region-growing" }'):
        recipe = load(write(GROWER, (LAST, f"{ASKED_MASKS}\n{given}"), SLICES))
        (tmp_path / "again.toml").write_text(to_toml(recipe))
        assert load(tmp_path / "again.toml").stages == recipe.stages
    named = load(write(GROWER, (LAST, f'{ASKED_MASKS}\nsegmenter = "grower"'), SLICES))
    assert named.stages[-1].options["segmenter"] == "grower"


def test_a_segmenter_is_swapped_from_the_command_line(write, install):
    body = "from evidcore_plugin_segmenters.region_growing import RegionGrowing as It\n"
    install("evid-other", "segmenter", "other", body)
    for given in ("", 'segmenter = { use = "region-growing" }', 'segmenter = "grower"'):
        path = write(GROWER, (LAST, f"{ASKED_MASKS}\n{given}"), SLICES)
        recipe = load(path, ['stage.evaluate.segmenter={use="other"}'])
        assert recipe.stages[-1].options["segmenter"]["use"] == "other"
        assert recipe.stages[:-1] == load(path).stages[:-1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('"growr"', "segmenter: no service is called 'growr'. Did you mean 'grower'? Services of this kind: grower. "
         "A segmenter of its own: { use = 'growr' }."),
        ('"judge"', "segmenter: must be a segmenter, but service 'judge' is a scorer."),
        ('{ use = "region-growin" }', "segmenter.use: no segmenter is called 'region-growin'. Did you mean"),
        ("3", "segmenter: must be a segmenter: a table such as { use = '…' }, or the name of a service; got 3."),
    ],
)  # fmt: skip
def test_a_segmenter_that_is_none_is_refused_with_its_line(write, given, said):
    found = mistakes(write(GROWER, (LAST, f"{ASKED_MASKS}\nsegmenter = {given}"), SLICES))
    assert f"line 50, stage.evaluate.{said}" in found[1]


def test_the_schema_allows_a_segmenter_as_a_table_or_as_a_service():
    found = recipe_schema()["$defs"]
    (masks,) = [
        one for one in found["evaluation"]["anyOf"] if one["properties"]["use"]["enum"][0] == "segmentation"
    ]
    assert masks["properties"]["segmenter"] == {"anyOf": [{"$ref": "#/$defs/segmenter"}, {"type": "string"}]}
    (report,) = [
        one for one in found["evaluation"]["anyOf"] if one["properties"]["use"]["enum"][0] == "report"
    ]
    assert report["properties"]["metric"]["type"] == "array"


def test_the_schema_has_every_stage_and_leaves_open_what_evaluations_add():
    stages = {one["properties"]["kind"]["const"]: one for one in recipe_schema()["$defs"]["stage"]["anyOf"]}
    assert stages.keys() >= {"audit", "evaluate", "fit", "grpo", "sft"}
    assert stages["sft"]["additionalProperties"] is False
    assert "additionalProperties" not in stages["evaluate"]


def test_a_language_model_without_use_is_a_pretrained_one(write):
    found = load(write(('{ use = "tiny" }', '{ folder = "models/small" }'))).model.language
    assert found == {"use": "pretrained", "folder": "models/small", "id": "", "revision": ""}


RECIPES = Path(__file__).parents[2] / "recipes"
WHOLE = [path for path in sorted(RECIPES.rglob("*.toml")) if "[[stage]]" in path.read_text(encoding="utf-8")]


@pytest.mark.slow
@pytest.mark.parametrize("path", WHOLE, ids=lambda path: str(path.relative_to(RECIPES)))
def test_the_resolved_copy_of_every_recipe_here_loads_to_the_same(path, tmp_path):
    recipe = load(path)
    (tmp_path / "again.toml").write_text(to_toml(recipe), encoding="utf-8")
    assert load(tmp_path / "again.toml") == recipe
