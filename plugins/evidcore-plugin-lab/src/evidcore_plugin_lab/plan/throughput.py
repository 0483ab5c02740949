"""How fast a machine has trained a model, as `benchmarks/gpu.sh` writes it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from evidcore.api import DataError, Workload
from evidcore_plugin_lab.plan.lengths import Lengths
from evidcore_plugin_lab.plan.shapes import Shapes

WRITE_ONE = "benchmarks/gpu.sh writes such a file."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Throughput:
    """Measured seconds of a step, and how many tokens it had."""

    device: str
    parameters: Mapping[str, int]  # by part, of the model that was measured
    tokens_per_s: Mapping[str, float]  # by kind of stage: prompts and answers of a step over its seconds

    @classmethod
    def read(cls, path: Path) -> Throughput:
        """Read a file.

        Raises:
            DataError: if it is not one; names the key that is missing.
        """
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            steps = {kind: step["tokens"] / step["seconds"] for kind, step in result["steps"].items()}
            return cls(device=result["device"], parameters=result["parameters"], tokens_per_s=steps)
        except OSError as cause:
            raise DataError(f"{path}: cannot be read ({cause.strerror}). {WRITE_ONE}") from cause
        except (KeyError, ValueError, TypeError, AttributeError, ZeroDivisionError) as cause:
            why = f", {cause} is missing" if isinstance(cause, KeyError) else f" ({cause})"
            raise DataError(f"{path}: holds no measured steps{why}. {WRITE_ONE}") from cause

    def seconds(self, kind: str, load: Workload, made: Shapes, rows: Lengths) -> float | None:
        """Return what all steps of a kind of stage would take, in proportion to their tokens.

        None where another model was measured, or no stage of this kind.
        """
        if dict(self.parameters) != dict(made.parameters) or kind not in self.tokens_per_s:
            return None
        if not load.trains_whole_model:
            return None
        rows_a_step = load.prompts_per_step * load.answers_per_prompt
        a_step = rows_a_step * (rows.prompt_tokens + rows.answer_tokens)
        if rows.replayed is not None:
            again = rows.replayed
            a_step += load.replayed_rows * (again.prompt_tokens + again.answer_tokens)
        return load.steps * a_step / self.tokens_per_s[kind]
