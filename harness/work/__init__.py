"""What cells ask of a loaded model: to generate, to give log-likelihoods, to classify. One class per kind of work.

Each class knows how its requests are made of documents, answered, scored, recorded, timed, fitted and checked when a
suite is planned. Nothing outside asks which kind a task is of.
"""
