"""Definition of a cell and its id: settings, seeds, documents, prompts, and the worker's job.

A cell is the smallest unit that is planned, run and stored. It passes through these stages:

    suite.toml -> plan -> cell -> worker (one per loaded model) -> documents -> prompts -> decode loop (method)
               -> spool (one folder per attempt) -> ingest (one process) -> DuckDB -> views -> figures

Kinds of cell:

    quality      real decode through lm-eval, traced, never timed
    timing       real decode, ABBA against full depth, timed, never traced
    probe        full depth, teacher-forced over the model's own greedy output
    scores       the method's own gate, evaluated at every block of every probed token
    replay       SQL over a probe, and over scores if the probe lacks the gate's score; `execution` is 'simulated'
    fit          parameters that a method trains or sets, on teacher-forced states of the train split
    calibration  real decodes of the calibration split at one threshold after another, until the risk is not controlled

The id is the SHA-256 of the settings of the cell: method, its parameters and version; engine version; digests of
weights, configuration, tokenizer, documents and prompts; generation settings, number format, device, batch size and
seed. Settings added later enter only if they differ from their default, so that existing ids stay valid:

* `batch_rows`, `device_map` (resolved to blocks per device) and the records enter if a suite sets them.
* The engine enters only if it is hosted.
* `head_precision` enters only if it is certified, and only for cells that decode.
* The origin of a model (`model.source`) and the text of the code never enter. The versions of engine, method and
  metrics enter in place of the code; golden traces (tests/golden) fail if results change and the version does not.
* A third-party method also enters by its distribution's name and version, and a digest of its syntax and imports.

Engine and head precision are part of the setting (`comparable_id`), so times of different engines or precisions are
never compared. A cell that the engine cannot run or cannot record for a method ends as skipped, with the reason.

`record` adds a further cell next to the plain one; all other cells read the plain one:

* probe, `sublayers` and `layer-pairs`: the LM head's prediction after each sub-layer, and how every two blocks differ,
  for the first `record_documents` (4). 32 blocks and 60 tokens take about 1 MB per document.
* probe, `prompt-ids`: the token ids of the prompts (view `prompt_tokens`).
* timing, `token-times`: the time of every token, one document at a time (view `token_timings`). The clock readings
  lengthen the measured times and are part of no speed-up.
"""
