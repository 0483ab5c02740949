"""Which published failure each check guards against, and for which rewards it is meant."""

from __future__ import annotations

GUARDS: dict[str, str] = {
    "contract": "TRL #6533: one score for all answers was broadcast; VLM-R1: errors turned into zeros",
    "process": "a reward's exit ended a run with status 0; a print broke the output for other programs",
    "right over wrong": "Med3D-R1's released reward: the letter that the prompt asks for earns 0 of 10",
    "malformed": "open-r1 #407: answers outside the format are paid",
    "no answer": "an option that is not there, or silence, is paid as an answer",
    "format alone": "Visual-RFT #79: well-formed nonsense is paid",
    "length": "open-r1 #407: long reasoning that says nothing is paid",
    "option order": "a letter is paid more than another: position bias of released choice rewards",
    "copied report": "a consistency reward pays the copied report behind a wrong answer",
    "echoed prompt": "words of the prompt are paid as reasoning",
    "everything affirmed": "Visual-RFT #79: 'A or B or C' earns the full score",
    "another key": "MedGround-R1 #7: the text that is judged is taken from the solution",
    "blind": "arXiv:2603.21687: 70 to 80 % of accuracy is kept without the image",
    "repeat": "verl #1683: equal calls give other scores",
    "company": "Med3D-R1's released trainer: answers are scored against another prompt's label",
    "policies that do not look": "arXiv:2506.10947: random rewards, and policies that never look, gain",
    "reference": "Med3D-R1's released reward model is never shown the report",
    "siblings": "a group reward that compares with nobody gives no advantage",
    "evidence": "MedVol-R1's released slice reward pays 0.87 half-way to the organ's tip",
    "tool words": "words that a tool replied are paid as the model's own",
    "missing file": "VLM-R1, MedVol-R1: a file that is missing scores 0",
    "empty against empty": "MedVol-R1's released overlap pays 1 where both masks are empty",
    "time": "a repeated word made a labeler quadratic; EasyR1 #252: slow rewards stall the run",
    "cost": "RadEval's table: 0.1 ms to 2 s an answer",
    "construction": "gptme #3193: start-up takes 15 s because plugins are imported and built to be listed",
    "loads": "MMEngine #1013: a component that cannot be found or loaded is told without its reason",
    "card": "MedVol-R1's notes: downloads, licences and hardware are not said",
}
