-- Confidence: Did each calibration keep its promise on documents that it did not see?
-- The level that each chose, what it promised to lose at most (delta), and what it lost on held-out documents. is_kept may be
-- false by chance: with a probability of epsilon.
SELECT
    model, task_label, method, label, consistency, threshold, delta, epsilon, mean_loss, held_out_loss,
    held_out_loss <= delta AS is_kept, held_out_mean_exit_layer, held_out_documents
FROM calibrations
WHERE chosen
ORDER BY model, task_label, method, label, consistency, delta, epsilon, cell_id;
