"""Names of this repository's packages are known, and look-alikes of its components are marked."""

from evidcore_plugin_hub.trust.names import look_alikes

from evidcore.registry import offers


def test_names_that_can_be_mistaken_are_marked(offered, evid):
    for package, name in (("claims", "f0rrnat"), ("early", "my-reward"), ("late", "my_reward")):
        offered(f"evid-{package}", f"[evidcore.reward]\n{name} = json:loads\n")
    marked = {row.package: other.package for row, other in look_alikes(offers("reward")).items()}
    assert marked == {"evid-claims": "evidcore", "evid-late": "evid-early"}
    said = evid("plugins", "reward").output
    assert "can be mistaken for reward 'format' from evidcore" in said
    assert "broken: a component's name has small letters, digits and dashes" in said
