import copy

import pytest
import torch
from torch import nn

from evidcore.model.parts import matrices_of
from evidcore.train.trl.optimizers import ChainedOptimizer, with_muon


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3))


def made(model):
    groups = [
        {"params": [model[1].weight, model[1].bias, model[2].weight], "lr": 0.1, "weight_decay": 0.0},
        {"params": [model[0].weight, model[3].weight, model[3].bias], "lr": 0.02, "weight_decay": 0.01},
    ]
    return with_muon(groups, matrices_of(model), torch.optim.AdamW)


def step(model, optimizer, seed):
    rows = torch.randint(7, (5,), generator=torch.Generator().manual_seed(seed))
    optimizer.zero_grad()
    model(rows).square().sum().backward()
    optimizer.step()


def test_muon_takes_the_matrices_and_keeps_each_groups_rate():
    model = small()
    muon, adamw = made(model).parts
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    taken = [(group["lr"], [id(weight) for weight in group["params"]]) for group in muon.param_groups]
    assert taken == [(0.1, [id(model[1].weight)]), (0.02, [id(model[3].weight)])]
    rest = {id(weight) for group in adamw.param_groups for weight in group["params"]}
    assert rest == {id(item) for item in (model[0].weight, model[1].bias, model[2].weight, model[3].bias)}


def test_a_schedule_reaches_all_groups_and_states_come_back():
    model = small()
    optimizer = made(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1.0 / (1 + done))
    step(model, optimizer, 0)
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.01, 0.05, 0.01])
    again = copy.deepcopy(model)
    other = made(again)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer, 1)
    step(again, other, 1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    trained = {weight for group in optimizer.param_groups for weight in group["params"]}
    assert set(optimizer.state) == trained


def test_a_closure_is_refused():
    with pytest.raises(ValueError, match="take no closure"):
        ChainedOptimizer([torch.optim.SGD([torch.zeros(1)])]).step(lambda: 0.0)
