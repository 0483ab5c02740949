"""Use a run's model on a scan of any origin: ask, read the answer, write it down with its evidence."""

from evidcore_plugin_lab.predict.inquiry import Inquiry
from evidcore_plugin_lab.predict.predict import Prediction, describe_training, predict_scan

__all__ = ["Inquiry", "Prediction", "describe_training", "predict_scan"]
