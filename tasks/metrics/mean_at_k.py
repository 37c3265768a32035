"""mean@k as an `evaluate` metric."""

from collections.abc import Sequence

import datasets
import evaluate

from tasks.scores import mean_at_k


class MeanAtK(evaluate.Metric):
    """Mean reward of a completion over prompts, with its standard error."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Mean reward of a completion over prompts, with its standard error.",
            citation="",
            inputs_description="predictions: per prompt, the list of its completions' rewards, from 0 to 1.",
            features=datasets.Features({"predictions": datasets.Sequence(datasets.Value("float64"))}),
        )

    def _compute(self, predictions: Sequence[Sequence[float]]) -> dict[str, float]:
        score = mean_at_k(predictions)
        return {"mean_at_k": score.value, "stderr": score.stderr, "prompts": score.prompts}
