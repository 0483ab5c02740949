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

    def write(self, folder):
        save_file(self.state_dict(), folder / "weights.safetensors")
        (folder / "fit.json").write_text(json.dumps({"steps": 2}))

    def load(self, folder):
        self.load_state_dict(load_file(folder / "weights.safetensors"))


class Raises(Fitted):
    def steps(self, rate, log):
        raise KeyError("lung")


class NoFigures(Fitted):
    def write(self, folder):
        save_file(self.state_dict(), folder / "weights.safetensors")


class ListOfFigures(Fitted):
    def write(self, folder):
        super().write(folder)
        (folder / "fit.json").write_text("[2]")


class Silent(Fitted):
    def steps(self, rate, log):
        super().steps(rate, lambda figures: None)


class Diverges(Fitted):
    def steps(self, rate, log):
        super().steps(rate, lambda figures: log({"loss": float("nan")}))


class WritesNothing(Fitted):
    def write(self, folder):
        (folder / "fit.json").write_text("{}")


class GoesOnDrawing(Fitted):
    def fit(self, train, validation, folder, seed, log):
        with torch.random.fork_rng(devices=[]):
            self.steps(0.1, log)
        self.write(folder)


class OneSeed(Fitted):
    def fit(self, train, validation, folder, seed, log):
        super().fit(train, validation, folder, 7, log)


class SetsTheSeed(Fitted):
    def fit(self, train, validation, folder, seed, log):
        torch.manual_seed(seed)
        self.steps(0.1, log)
        self.write(folder)


class LoadsHalf(Fitted):
    def load(self, folder):
        weights = load_file(folder / "weights.safetensors")
        self.load_state_dict({name: weights[name] for name in weights if "embed" in name}, strict=False)


class CannotLoad(Fitted):
    def load(self, folder):
        self.load_state_dict(load_file(folder / "model.safetensors"))


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return [volume_case(tmp_path_factory.mktemp("cases"))]


def test_a_sound_component_passes(cases, tmp_path):
    check_fit(Fitted, cases, cases, tmp_path, options={"rate": 0.2})


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Raises, "Raises breaks its contract: cases are fitted. 1 cases raised KeyError: 'lung'"),
        (NoFigures, "`fit.json` holds a table. FileNotFoundError"),
        (ListOfFigures, r"`fit.json` holds a table. got \[2\]"),
        (Silent, "the log hears of steps. it heard nothing"),
        (Diverges, r"logged numbers are finite. got \{'loss': nan\}"),
        (WritesNothing, r"weights are written. got \['fit.json'\]"),
        (GoesOnDrawing, r"equal seeds write equal weights. different: \['weights.safetensors'\]"),
        (OneSeed, "another seed writes other weights. seeds 1 and 2 wrote the same"),
        (SetsTheSeed, "the random state is left as it was. torch's has moved"),
        (LoadsHalf, r"`load` gives what `fit` made. different: \['position', 'layers"),
        (CannotLoad, "`load` gives what `fit` made. .* raised FileNotFoundError"),
    ],
)
def test_a_component_that_breaks_a_clause_is_caught(mutant, message, cases, tmp_path):
    with pytest.raises(AssertionError, match=message):
        check_fit(mutant, cases, cases, tmp_path)
