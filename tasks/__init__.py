"""The tasks: documents, prompts, references, metrics, and the sources of the records.

* This project's metrics are on a scale of 0 to 100, and so are proportions (such as accuracy) of lm-eval's tasks.
  `Task.bounds` has the range of other metrics, if there is one.
* Scores are stored per document, as values and as sufficient statistics that add up. So BLEU of any subset or
  resample of the documents is computed from sums. A metric without statistics aggregates to the mean of its values.
* A rank correlation is not a function of sums: `Task.aggregator` returns a function of all documents' statistics and
  of how often each counts.
* A classification task (`classification.py`) provides texts or pairs, and a label or number to compare with the answer.
  Answers are stored as text (the label's name or the number), so that they can be scored again.
* `metric_version` changes whenever a score could change. The first of `metrics` is the headline.
"""
