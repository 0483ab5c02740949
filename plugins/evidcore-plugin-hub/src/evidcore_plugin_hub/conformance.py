"""`pytest --evid-conformance`: what `evid lint` finds of a package stands among its tests, a test a check."""

from pathlib import Path
from typing import Any

import pytest

GROUP, OPTION = "evidcore", "--evid-conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the recipe that components may need."""
    group = parser.getgroup(GROUP)
    about = "Also lint the components that the package in this folder offers."
    group.addoption(OPTION, action="store_true", help=about)
    about = "Lint over its data and with its options."
    group.addoption("--evid-recipe", default="", metavar="RECIPE", help=about)


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[Any]) -> None:
    """Add a test for each check of each component.

    Raises:
        UsageError: if the folder offers no component.
    """
    if not config.getoption(OPTION):
        return
    from evidcore.errors import EvidError
    from evidcore_plugin_hub.lint.target import lint_all, targets

    folder, recipe = str(config.rootpath), config.getoption("--evid-recipe")
    if not (config.rootpath / "pyproject.toml").is_file():
        raise pytest.UsageError(f"{OPTION}: no pyproject.toml lies in {folder}. Run it where the package is.")
    try:
        results = list(lint_all(targets([folder], recipe=recipe)))
    except EvidError as mistake:
        raise pytest.UsageError(str(mistake)) from mistake
    for result in results:
        for number, check in enumerate(result["checks"]):
            words = [result["kind"], result["name"], check["task"], check["check"]]
            name = f"evid-conformance[{', '.join(word for word in words if word)}-{number}]"
            items.append(Conformance.from_parent(session, name=name, check=check))


class Conformance(pytest.Item):
    """One check of one component."""

    def __init__(self, *, check: dict[str, Any], **given: Any) -> None:
        super().__init__(**given)
        self.check = check

    def runtest(self) -> None:
        """Fail where lint raised an alarm; skip what does not apply."""
        if self.check["outcome"] == "not applicable":
            pytest.skip(self.check["says"])
        if self.check["outcome"] == "alarm":
            guards = f" (guards against: {self.check['guards']})" if self.check["guards"] else ""
            pytest.fail(f"{self.check['check']}: {self.check['says']}{guards}", pytrace=False)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Return where it is said to be."""
        return self.path, None, self.name
