"""Audits of models that were not trained here, and finished runs read: nothing in it trains.

Questions go out as files and answers come back, or a function or a published model is asked. A run's folder
is read as tables, listed and compared. It imports no trainer and not TRL.
"""
