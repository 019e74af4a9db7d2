-- Confidence: Did each calibration keep its guarantee on held-out documents?
-- One row per calibration: the chosen level, the guaranteed maximal loss (delta), and the loss on documents that
-- calibration did not use. is_kept may be false by chance, with probability epsilon.
SELECT
    model, task_label, method, label, consistency, threshold, delta, epsilon, mean_loss, held_out_loss,
    held_out_loss <= delta AS is_kept, held_out_mean_exit_layer, held_out_documents
FROM calibrations
WHERE chosen
ORDER BY model, task_label, method, label, consistency, delta, epsilon, cell_id;
