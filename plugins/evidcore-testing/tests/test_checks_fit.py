import json

import pytest
import torch
from evidcore_testing import TinyEncoder, check_fit, volume_case
from safetensors.torch import load_file, save_file


class Fitted(TinyEncoder):
    """Two steps of making features small."""

    def fit(self, train, validation, folder, seed, log, *, rate: float = 0.1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.steps(rate, log)
        self.write(folder)

    def steps(self, rate, log):
        for _ in range(2):
            loss = self(torch.randn(2, 1, 12, 16, 16)).features.square().mean()
            grads = torch.autograd.grad(loss, list(self.parameters()))
            with torch.no_grad():
                for weight, grad in zip(self.parameters(), grads, strict=True):
                    weight -= rate * grad
            log({"loss": loss.item()})

    def write(self, folder, figures='{"steps": 2}'):
        save_file(self.state_dict(), folder / "weights.safetensors")
        (folder / "fit.json").write_text(figures)

    def load(self, folder, name="weights"):
        self.load_state_dict(load_file(folder / f"{name}.safetensors"))


def mutant(**members):
    return type("Mutant", (Fitted,), members)


def logging(change):
    return mutant(steps=lambda self, rate, log: Fitted.steps(self, rate, lambda figures: change(log)))


def goes_on_drawing(self, train, validation, folder, seed, log):
    with torch.random.fork_rng(devices=[]):
        self.steps(0.1, log)
    self.write(folder)


def sets_the_seed(self, train, validation, folder, seed, log):
    torch.manual_seed(seed)
    self.steps(0.1, log)
    self.write(folder)


def loads_half(self, folder):
    weights = load_file(folder / "weights.safetensors")
    self.load_state_dict({name: weights[name] for name in weights if "embed" in name}, strict=False)


MUTANTS = {
    "Mutant breaks its contract: cases are fitted. 1 cases raised JSONDecodeError": mutant(
        steps=lambda self, rate, log: json.loads("no")
    ),
    "`fit.json` holds a table. FileNotFoundError": mutant(write=lambda self, folder: None),
    "the log hears of steps. it heard nothing": logging(lambda log: None),
    r"logged numbers are finite. got \{'loss': nan\}": logging(lambda log: log({"loss": float("nan")})),
    r"weights are written. got \['fit.json'\]": mutant(
        write=lambda self, folder: (folder / "fit.json").write_text("{}")
    ),
    r"equal seeds write equal weights. different: \['weights.safetensors'\]": mutant(fit=goes_on_drawing),
    "another seed writes other weights. seeds 1 and 2 wrote the same": mutant(
        fit=lambda self, train, validation, folder, seed, log: Fitted.fit(self, [], [], folder, 7, log)
    ),
    "the random state is left as it was. torch's has moved": mutant(fit=sets_the_seed),
    r"`load` gives what `fit` made. different: \['position', 'layers": mutant(load=loads_half),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return [volume_case(tmp_path_factory.mktemp("cases"))]


def test_a_sound_component_passes(cases, tmp_path):
    check_fit(Fitted, cases, cases, tmp_path, options={"rate": 0.2})


@pytest.mark.parametrize("message", MUTANTS)
def test_a_component_that_breaks_a_clause_is_caught(message, cases, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check_fit(MUTANTS[message], cases, cases, tmp_path)
