import logging

from evidcore.cli.progress import Progress


def test_what_the_parts_of_a_run_say_of_themselves_is_shown_while_it_runs(tmp_path, capsys):
    log = logging.getLogger("evidcore.train")
    log.info("before")
    with Progress(tmp_path):
        log.info("prompts are scored once for all answers")
        log.warning("an entry is damaged")
    log.info("after")
    assert capsys.readouterr().err == "prompts are scored once for all answers\nan entry is damaged\n"
