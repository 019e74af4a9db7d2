"""Definition of a cell and its id: settings, seeds, documents, prompts, and the worker's job.

A cell is the smallest unit that is planned, run and stored. Its way:

    suite.toml -> plan -> cell -> worker (one per loaded model) -> documents -> prompts -> decode loop (method)
               -> spool (one folder per attempt) -> ingest (one process) -> DuckDB -> views -> figures

Kinds of cell:

    quality      real decode through lm-eval, traced, never timed
    timing       real decode, ABBA against full depth, timed, never traced
    probe        full depth, teacher-forced over the model's own greedy output
    scores       the method's own gate, evaluated at every block of every probed token
    replay       SQL over a probe, and over scores if the probe lacks the gate's score; `execution` is 'simulated'
    fit          what a method trains or sets, on teacher-forced states of the train split
    calibration  real decodes of the calibration split at one level after another, until the risk is not controlled

The id is the SHA-256 of what is requested: method, its parameters and version; engine version; digests of weights,
configuration, tokenizer, documents and prompts; generation settings, number format, device, batch size and seed. A key
that is left out at its default does not enter, so that existing ids stay valid:

* `batch_rows`, `device_map` (resolved to blocks per device) and what is recorded enter if a suite sets them.
* The engine enters only if it is hosted.
* `head_precision` enters only if it is certified, and only for cells whose gate decides while decoding.
* Where a model comes from (`model.source`) and how code is written never enter. What the code computes enters by the
  versions of engine, method and metrics; golden traces (tests/golden) fail if a version and its results disagree.
* A third-party method also enters by its distribution's name and version, and a digest of its syntax and imports.

Engine and head precision belong to the setting (`comparable_id`), so times of different ones are never compared. A cell
that the engine cannot run for a method, or cannot record, ends as skipped, with the reason.

`record` requests a further cell next to the plain one, from which all others compute:

* probe, `sublayers` and `layer-pairs`: what the LM head reads from each sub-layer, and how every two blocks differ,
  for the first `record_documents` (4). 32 blocks and 60 tokens take about 1 MB per document.
* probe, `prompt-ids`: the prompts as they are fed (view `prompt_tokens`).
* timing, `token-times`: the clock after every token, one document at a time (view `token_timings`). These readings are
  in its times and in no speed-up.
"""
