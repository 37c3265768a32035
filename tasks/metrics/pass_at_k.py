"""pass@k as an `evaluate` metric."""

from collections.abc import Sequence

import datasets
import evaluate

from tasks.scores import pass_at_k


class PassAtK(evaluate.Metric):
    """Unbiased chance that one of k completions passes, with its standard error over prompts."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Unbiased chance that one of k completions passes, with its standard error over prompts.",
            citation="",
            inputs_description="predictions: per prompt, 1 for each completion that passed and 0 for each other.",
            features=datasets.Features({"predictions": datasets.Sequence(datasets.Value("float64"))}),
        )

    def _compute(self, predictions: Sequence[Sequence[float]], k: int = 1) -> dict[str, float]:
        score = pass_at_k(predictions, k)
        return {"pass_at_k": score.value, "stderr": score.stderr, "prompts": score.prompts}
