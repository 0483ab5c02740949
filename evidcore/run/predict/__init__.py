"""Use a run's model on a scan of any origin: ask, read the answer, write it down with its evidence."""

from evidcore.run.predict.inquiry import Inquiry
from evidcore.run.predict.predict import Prediction, predict_scan

__all__ = ["Inquiry", "Prediction", "predict_scan"]
