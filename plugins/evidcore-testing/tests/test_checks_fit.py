import dataclasses
import json

import pytest
import torch
from evidcore_testing import TinyEncoder, check_fit
from mutants import altered, caught
from safetensors.torch import load_file, save_file


class Fitted(TinyEncoder):
    """Two steps of making features small."""

    def fit(self, given, *, rate: float = 0.1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(given.seed)
            self.steps(rate, given.log)
        self.write(given.folder)

    def steps(self, rate, log):
        for _ in range(2):
            loss = self(torch.randn(2, 1, 12, 16, 16)).features.square().mean()
            grads = torch.autograd.grad(loss, list(self.parameters()))
            with torch.no_grad():
                for weight, grad in zip(self.parameters(), grads, strict=True):
                    weight -= rate * grad
            log({"loss": loss.item()})

    def write(self, folder):
        save_file(self.state_dict(), folder / "weights.safetensors")
        (folder / "fit.json").write_text('{"steps": 2}')

    def load(self, folder):
        self.load_state_dict(load_file(folder / "weights.safetensors"))


def logging(change):
    return altered(Fitted, steps=lambda self, rate, log: Fitted.steps(self, rate, lambda _: change(log)))


def goes_on_drawing(self, given):
    with torch.random.fork_rng(devices=[]):
        self.steps(0.1, given.log)
    self.write(given.folder)


def sets_the_seed(self, given):
    torch.manual_seed(given.seed)
    self.steps(0.1, given.log)
    self.write(given.folder)


def knows_no_seed(self, given):
    Fitted.fit(self, dataclasses.replace(given, seed=7))


def loads_half(self, folder):
    weights = load_file(folder / "weights.safetensors")
    self.load_state_dict({name: weights[name] for name in weights if "embed" in name}, strict=False)


MUTANTS = {
    "cases are fitted. 1 cases raised JSONDecodeError": altered(
        Fitted, steps=lambda *given: json.loads("no")
    ),
    "`fit.json` holds a table. FileNotFoundError": altered(Fitted, write=lambda self, folder: None),
    "the log hears of steps. it heard nothing": logging(lambda log: None),
    r"logged numbers are finite. got \{'loss': nan\}": logging(lambda log: log({"loss": float("nan")})),
    r"weights are written. got \['fit.json'\]": altered(
        Fitted, write=lambda self, folder: (folder / "fit.json").write_text("{}")
    ),
    r"equal weights. different: \['weights.safetensors'\]": altered(Fitted, fit=goes_on_drawing),
    "another seed writes other weights. seeds 1 and 2 wrote the same": altered(Fitted, fit=knows_no_seed),
    "the random state is left as it was. torch's has moved": altered(Fitted, fit=sets_the_seed),
    r"`load` gives what `fit` made. different: \['position', 'layers": altered(Fitted, load=loads_half),
}


def test_a_sound_component_passes(cases, tmp_path):
    check_fit(Fitted, cases[:1], cases[:1], tmp_path, options={"rate": 0.2})


@pytest.mark.parametrize("message", MUTANTS)
def test_a_component_that_breaks_a_clause_is_caught(message, cases, tmp_path):
    with caught(message):
        check_fit(MUTANTS[message], cases[:1], cases[:1], tmp_path)
