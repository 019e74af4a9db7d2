"""The spool: one folder per attempt at a cell, the schema of its files, and the heartbeat of the writing process.

    SPOOL/CELL_ID[:2]/CELL_ID/ATTEMPT_ID/    cell.json, env.json, status.json, log.txt, the files below, and DONE

A worker writes only its attempt's folder. An attempt without `DONE` is unfinished. The database can be rebuilt from the
spool; `FREED` lists the tables that `exitbench gc` removed. The files below, by kind of cell:

    quality      samples, tokens, metrics; if texts are given: choices; for encoders: sequence_trace
    timing       timings, device, metrics; if measured: energy and energy_domains; if recorded: token_times
    probe        probe; if recorded: sublayers, layer_pairs, prompts
    scores       scores (NaN and -1 where the gate was not evaluated)
    replay       tokens, metrics; if texts are given: choices
    fit          fitted.safetensors, fit_curve, metrics
    calibration  calibration (one row per tried level, conservative first), metrics

* The spool's root may be a link. Links, pipes and devices inside it are reported and ignored.
* From a third-party spool only the files that `DONE` lists are copied, and verified before they are put in place.
* `status.json` has `~` for the home folder, and omits the folders above an interpreter's packages. `log.txt` has
  the original paths. `products` of env.json are the ways of multiplying by weight matrices that were chosen on the
  machine (docs/measuring.md).

Next to the attempts are the side records that a rebuild needs: `trainings/WEIGHTS/`, `vocabularies/TOKENIZER/`,
`rescores/ATTEMPT/VERSION/`, `tags/ATTEMPT/TAGGER/`, `imports/DIGEST/` and `perf/DIGEST.json`. Imports are snapshots of
attempts whose own spool is elsewhere: they are in the database, but `plan` does not count them as done.
"""
